"""The verbs for picture files: fuse, verify."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fusionray.config import validate
from fusionray.errors import ImageRejected, InputMissing

if TYPE_CHECKING:
    from fusionray.faces.face import Image


def add_fuse(parser: argparse.ArgumentParser) -> None:
    for name, text in (("source", "picture of the identity"), ("target", "picture to change"), ("output", "result")):
        parser.add_argument(name, metavar=name.upper(), help=text)
    parser.add_argument("--bundle", required=True, help="bundle folder, or models:/name@alias")
    parser.add_argument("--faces", choices=("largest", "all"), default="largest", help="faces of the target to change")
    parser.add_argument("--detector", default="default", help="'default', or the path of a YuNet or SCRFD ONNX file")
    parser.add_argument("--tracking-uri", help="MLflow store behind models:/ locations")
    parser.add_argument("--certificate", metavar="PEM", help="signing certificate and its chain; default: a test key")
    parser.add_argument("--key", metavar="PEM", help="private key of the certificate")
    parser.add_argument("--mark", action="store_true", help="draw a small plate that says AI into a corner")
    parser.set_defaults(run=run_fuse)


def run_fuse(options: argparse.Namespace) -> None:
    from fusionray.bundle.bundle import bundle_hash, read_bundle
    from fusionray.bundle.description import FACE_FUSION
    from fusionray.faces.detect import build_detector
    from fusionray.runtime.fuser import Fuser
    from fusionray.safety.mark import Mark, MarkConfig
    from fusionray.safety.output import encode_output
    from fusionray.safety.provenance import Provenance
    from fusionray.safety.signing import build_signer
    from fusionray.safety.signing_keys import SigningConfig

    formats = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}
    output = Path(options.output)
    if output.suffix.lower() not in formats:
        raise ValueError(f"{output}: name the result .png, .jpg or .webp")
    source, target = read_picture(options.source), read_picture(options.target)
    signing = {"certificate": options.certificate, "key": options.key}
    settings = validate(SigningConfig, signing, "--certificate, --key")
    bundle = read_bundle(options.bundle, options.tracking_uri)
    bundle.require_task(FACE_FUSION)
    signer = build_signer(settings)
    fused = Fuser(bundle, build_detector(options.detector)).fuse(source, target, options.faces)
    provenance = Provenance(bundle.description.name, bundle_hash(bundle))
    data = encode_output(
        fused.image,
        provenance,
        formats[output.suffix.lower()],  # type: ignore[arg-type]
        signer=signer,
        mark=Mark(MarkConfig(enabled=True)) if options.mark else None,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(data)
    print(f"{output}: {fused.num_faces} face(s) fused with {bundle.description.name}; signed as AI-made")


def read_picture(place: str) -> Image:
    """Decode a picture file; what is wrong with it is said with its name."""
    from fusionray.faces.decode import decode_image

    try:
        return decode_image(Path(place).read_bytes())
    except OSError as error:
        raise InputMissing(f"{place}: cannot be read ({error.strerror}); check the path") from None
    except ImageRejected as error:
        raise ImageRejected(error.reason, f"{place}: {error}") from None


def add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="picture, or MP4 film")
    parser.add_argument("--trust", metavar="PEM", help="certificates of the CAs whose signers are believed")
    parser.add_argument("--json", action="store_true", help="print all that was found, as a JSON list")
    parser.set_defaults(run=run_verify)


def run_verify(options: argparse.Namespace) -> None:
    from fusionray.safety.verify_files import verify_files

    verify_files(options.files, trust=options.trust, as_json=options.json)
