"""Verify a file's provenance: its signer, whether it was changed after signing, and which model made it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO

import c2pa
from cryptography import x509
from pydantic import BaseModel, ValidationError

from fusionray.errors import ConfigInvalid, ImageRejected
from fusionray.faces.image_files.headers.heif_header import detect_heif
from fusionray.faces.image_files.headers.image_header import detect_kind
from fusionray.safety.provenance import Provenance, read_provenance
from fusionray.safety.self_signed import TEST_ORGANISATION
from fusionray.safety.signing import MODEL_LABEL, OFFLINE, TRUST
from fusionray.safety.verification_summary import ProvenanceResult

# The part of a file in which its kind and its XMP are looked for; all of nearly every picture.
HEAD_BYTES = 64 * 2**20
MAX_BYTES = 256 * 2**20
MAX_MANIFEST_MEBIBYTES = 16
ACTION_LABELS = ("c2pa.actions", "c2pa.actions.v2")
LONGEST_TEXT = 200
# An unknown CA makes a signature untrusted, not invalid.
UNTRUSTED = "signingCredential.untrusted"
FAULTS = {
    "assertion.dataHash.mismatch": "changed after it was signed",
    "assertion.bmffHash.mismatch": "changed after it was signed",
    "assertion.hashedURI.mismatch": "its manifest was changed",
    "claimSignature.mismatch": "the signature does not fit",
    "claimSignature.missing": "the signature is missing",
    "claimSignature.outsideValidity": "the certificate has expired",
    "signingCredential.expired": "the certificate has expired",
    "signingCredential.invalid": "the certificate does not suit C2PA",
    UNTRUSTED: "the signer is not trusted",
}
ALTERATIONS = ("assertion.dataHash.", "assertion.bmffHash.", "assertion.hashedURI.", "claimSignature.mismatch")


class SignatureInfo(BaseModel):
    """The signer, as the C2PA reader reports it."""

    alg: str | None = None
    issuer: str | None = None
    common_name: str | None = None
    cert_serial_number: str | None = None


class Assertion(BaseModel):
    """A statement of a manifest; its `data` is untrusted and may be of any type."""

    label: str
    data: Any = None


class C2paManifest(BaseModel):
    """The parts of a manifest that the verification uses."""

    claim_generator_info: list[dict[str, Any]] = []
    signature_info: SignatureInfo = SignatureInfo()
    assertions: list[Assertion] = []


class StatusCode(BaseModel):
    """One result of the validation."""

    code: str


class ManifestFailures(BaseModel):
    """The failures of a manifest."""

    failure: list[StatusCode] = []


class ValidationResults(BaseModel):
    """The validation of the active manifest."""

    activeManifest: ManifestFailures = ManifestFailures()  # noqa: N815 - the reader's own spelling


class C2paReport(BaseModel):
    """The C2PA reader's report on a file."""

    active_manifest: str
    manifests: dict[str, C2paManifest]
    validation_state: str
    validation_results: ValidationResults = ValidationResults()


def verify(data: bytes, trust: str | None = None, max_bytes: int = MAX_BYTES) -> ProvenanceResult:
    """Verify a JPEG, PNG, TIFF or WebP picture, or an MP4 film. `trust` is PEM text of the trusted CAs.

    Decodes no pixel and fetches nothing.

    Raises: ImageRejected for another kind of file, or one that is too large; ConfigInvalid if `trust` has no
        certificate.
    """
    if len(data) > max_bytes:
        raise ImageRejected("too_large", f"the file has {len(data)} bytes, over the limit of {max_bytes}")
    return verify_stream(io.BytesIO(data), data, trust)


def verify_file(path: Path, trust: str | None = None) -> ProvenanceResult:
    """Verify a file of any size as `verify` does. The C2PA reader holds the file once, and nothing else does.

    Raises: OSError; ImageRejected, ConfigInvalid as `verify`.
    """
    with path.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
        stream.seek(0)
        return verify_stream(stream, head, trust)


def verify_stream(stream: BinaryIO, data: bytes, trust: str | None) -> ProvenanceResult:
    """Verify what a stream gives, of which `data` are the first bytes, those with its kind and XMP."""
    film = data[4:8] == b"ftyp" and detect_heif(data) is None
    media_type = "video/mp4" if film else f"image/{detect_kind(data)}"
    xmp = None if film else read_xmp(data)
    settings: dict[str, Any] = {
        "version": 1,
        "core": {"max_decompressed_manifest_size_in_mb": MAX_MANIFEST_MEBIBYTES},
        "trust": TRUST if trust is None else TRUST | {"trust_anchors": check_trust(trust)},
        "verify": OFFLINE | {"verify_trust": True},
    }
    try:
        context = c2pa.Context.from_dict(settings)
        with c2pa.Reader(media_type, stream, context=context) as reader:
            report = C2paReport.model_validate_json(reader.json())
            manifest = report.manifests[report.active_manifest]
    except (c2pa.C2paError.ManifestNotFound, c2pa.C2paError.NotSupported):
        return ProvenanceResult(xmp=xmp)
    except (c2pa.C2paError, ValidationError, KeyError, ValueError):
        # The parser's message about a broken manifest would not help the user.
        return ProvenanceResult(faults=("its manifest cannot be read",), xmp=xmp, signed=True)
    return summarise(report, manifest, xmp, with_trust=trust is not None)


def read_xmp(data: bytes) -> Provenance | None:
    """Read the XMP of a picture; None also for a damaged picture, about which its manifest says more.

    Raises: ImageRejected for a picture that is too large.
    """
    try:
        return read_provenance(data)
    except ImageRejected as error:
        if error.reason != "damaged":
            raise
        return None


def summarise(
    report: C2paReport, manifest: C2paManifest, xmp: Provenance | None, *, with_trust: bool
) -> ProvenanceResult:
    """Summarise the report of a readable manifest."""
    codes = [finding.code for finding in report.validation_results.activeManifest.failure]
    intact = report.validation_state in {"Valid", "Trusted"}
    serious = [code for code in codes if code != UNTRUSTED or (with_trust and intact)]
    if not intact and not serious:
        serious = ["one of its ingredients does not hold"]
    info = manifest.signature_info
    software = manifest.claim_generator_info[0] if manifest.claim_generator_info else {}
    made = find_model(manifest)
    return ProvenanceResult(
        signed=True,
        intact=intact,
        altered=any(code.startswith(ALTERATIONS) for code in codes),
        trusted=report.validation_state == "Trusted" if with_trust else None,
        test_key=info.issuer == TEST_ORGANISATION,
        signer=clean(info.common_name),
        organisation=clean(info.issuer),
        certificate_serial=clean(info.cert_serial_number),
        algorithm=clean(info.alg),
        generator=clean(software.get("name")),
        generator_version=clean(software.get("version")),
        digital_source_type=find_source_type(manifest),
        model=clean(made.get("model")),
        bundle=clean(made.get("bundle")),
        faults=tuple(dict.fromkeys(FAULTS.get(code, clean(code) or "unknown") for code in serious)),
        xmp=xmp,
    )


def find_source_type(manifest: C2paManifest) -> str | None:
    """Return the digital source type of the first action that has one."""
    for assertion in manifest.assertions:
        if assertion.label not in ACTION_LABELS or not isinstance(assertion.data, dict):
            continue
        actions = assertion.data.get("actions")
        for action in actions if isinstance(actions, list) else []:
            if isinstance(action, dict) and "digitalSourceType" in action:
                return clean(action["digitalSourceType"])
    return None


def find_model(manifest: C2paManifest) -> dict[str, Any]:
    for assertion in manifest.assertions:
        if assertion.label == MODEL_LABEL and isinstance(assertion.data, dict):
            return assertion.data
    return {}


def clean(text: object) -> str | None:
    """Make untrusted text safe for a terminal: one line, bounded, no control characters."""
    if not isinstance(text, str):
        return None
    return "".join(letter if letter.isprintable() else "?" for letter in text[:LONGEST_TEXT])


def check_trust(pem: str) -> str:
    """Check that PEM text holds certificates.

    Raises: ConfigInvalid.
    """
    try:
        x509.load_pem_x509_certificates(pem.encode())
    except ValueError:
        raise ConfigInvalid("trust: contains no readable PEM certificate; name the file of the CA chain") from None
    return pem
