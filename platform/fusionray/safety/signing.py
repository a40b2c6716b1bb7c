"""Sign outputs: a C2PA manifest states which software and model made a picture.

All work is offline: no timestamp authority, no remote manifests, no OCSP. Without a timestamp, a signature is valid as
long as its certificate.
"""

from __future__ import annotations

import io
import json
import warnings
from datetime import UTC, datetime
from typing import BinaryIO

import c2pa
from PIL import Image

from fusionray.errors import SigningFailed, SigningKeyInvalid
from fusionray.safety.provenance import SOFTWARE, Provenance
from fusionray.safety.signing_keys import PURPOSES, SigningConfig, SigningKey, load_key

# Label of the assertion with model and bundle.
MODEL_LABEL = "fusionray.model"
OFFLINE = {"remote_manifest_fetch": False, "ocsp_fetch": False}
# By default the library only accepts certificates for e-mail.
TRUST = {"trust_config": "\n".join(PURPOSES)}
SETTINGS = {
    "version": 1,
    # A thumbnail would show the person again, and costs 110 kB and 45 ms.
    "builder": {"thumbnail": {"enabled": False}},
    "trust": TRUST,
    # The signer is tested once, when it is made; verifying each signature would take longer than signing.
    "verify": OFFLINE | {"verify_after_sign": False},
}


class Signer:
    """Sign with one key. Make one for each process, after a fork; its threads may share it.

    A signature of a 512 px picture takes 0.5 ms for JPEG, 1.0 ms for PNG and 0.5 ms for WebP, and adds 3.5 kB.
    """

    def __init__(self, key: SigningKey) -> None:
        """Load the key and test it.

        Raises: SigningKeyInvalid if its signatures would not be accepted.
        """
        self.name = key.name
        self.is_test = key.is_test
        self.expires = key.expires
        try:
            native = c2pa.Signer.from_info(c2pa.C2paSignerInfo(key.algorithm, key.chain, key.private_key, None))
            self.context = c2pa.Context.from_dict(SETTINGS, signer=native)
            with c2pa.Reader("image/png", io.BytesIO(self.try_out()), context=self.context) as reader:
                accepted = reader.get_validation_state() != "Invalid"
        except c2pa.C2paError as error:
            raise SigningKeyInvalid(f"the key of {key.name} cannot sign: {error}") from None
        if not accepted:
            raise SigningKeyInvalid(
                f"signatures of the key of {key.name} are invalid; is its certificate made for C2PA?"
            )

    def try_out(self) -> bytes:
        plain, signed = io.BytesIO(), io.BytesIO()
        Image.new("RGB", (1, 1)).save(plain, "PNG")
        self.write(plain, signed, "image/png", Provenance("trial", "0"))
        return signed.getvalue()

    def sign(self, data: bytes, media_type: str, provenance: Provenance) -> bytes:
        """Return an encoded picture with a signed manifest, which covers all its other content, including XMP.

        Raises: SigningFailed.
        """
        signed = io.BytesIO()
        self.sign_stream(io.BytesIO(data), signed, media_type, provenance)
        return signed.getvalue()

    def sign_stream(self, source: BinaryIO, output: BinaryIO, media_type: str, provenance: Provenance) -> None:
        """Copy a picture or film (video/mp4) from `source` to `output` (read and write), with a signed manifest.

        Raises: SigningFailed.
        """
        if datetime.now(UTC) > self.expires:
            raise SigningFailed(f"the certificate of {self.name} expired on {self.expires:%Y-%m-%d}; get a new one")
        try:
            self.write(source, output, media_type, provenance)
        except c2pa.C2paError as error:
            raise SigningFailed(f"the output ({media_type}) cannot be signed: {error}") from None

    def write(self, source: BinaryIO, output: BinaryIO, media_type: str, provenance: Provenance) -> None:
        with c2pa.Builder(build_manifest(provenance), self.context) as builder:
            builder.sign(media_type, source, output)


def build_signer(settings: SigningConfig) -> Signer:
    """Make the signer of the settings; warn if it uses a test key.

    Raises: SigningKeyInvalid.
    """
    signer = Signer(load_key(settings))
    if signer.is_test:
        warnings.warn(
            "outputs are signed with a generated TEST KEY that nobody trusts; set signing.certificate and signing.key "
            "(fuse: --certificate, --key) to PEM files of your own",
            RuntimeWarning,
            stacklevel=2,
        )
    return signer


def build_manifest(provenance: Provenance) -> str:
    """Build the claim as JSON: the action, its time, the software and the model.

    Source: C2PA specification, "Actions": the first action of a new asset is c2pa.created.
    """
    software = {"name": SOFTWARE, "version": provenance.software_version}
    action = {
        "action": "c2pa.created",
        "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "softwareAgent": software,
        "digitalSourceType": provenance.digital_source_type,
    }
    model = {"model": provenance.model, "bundle": provenance.bundle}
    assertions = [
        {"label": "c2pa.actions.v2", "data": {"actions": [action]}, "created": True},
        {"label": MODEL_LABEL, "data": model, "created": True},
    ]
    return json.dumps({"claim_generator_info": [software], "assertions": assertions})
