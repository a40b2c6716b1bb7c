"""What verbs share that write a picture: its format by its name, the metadata it keeps, the mark and the signature."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fusionray.commands.parser import Parser

if TYPE_CHECKING:
    from fusionray.bundle.bundle import Bundle
    from fusionray.faces.face import Image
    from fusionray.faces.image_files.headers.image_header import PictureFormat
    from fusionray.safety.signing import Signer

FORMATS: dict[str, PictureFormat] = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}


def add_metadata_option(group: argparse._ArgumentGroup, picture: str) -> None:
    """Add the option that chooses what the result keeps; `picture`: of which picture, in the words of the verb."""
    group.add_argument(
        "--metadata",
        choices=("none", "colours", "all"),
        default="colours",
        help=f"what the result keeps of the {picture}: its ICC profile (colours), EXIF data as well (all), or nothing",
    )


def add_provenance_options(parser: Parser) -> None:
    """Add the options of signature and mark."""
    group = parser.add_argument_group("provenance")
    group.add_argument(
        "--certificate", metavar="PEM", help="sign with this certificate and its chain; default: a test key"
    )
    group.add_argument("--key", metavar="PEM", help="private key of the certificate")
    group.add_argument("--mark", action="store_true", help="draw a small plate that says AI into a corner")


def find_format(output: Path) -> PictureFormat:
    """Return the format that the name of a result says.

    Raises: ValueError for another ending.
    """
    if output.suffix.lower() not in FORMATS:
        raise ValueError(f"{output}: the name of the result must end in .png, .jpg or .webp")
    return FORMATS[output.suffix.lower()]


def open_signer(options: argparse.Namespace) -> Signer:
    """Open the certificate and key of the options, or a test key.

    Raises: ConfigInvalid, SigningFailed.
    """
    from fusionray.config import validate
    from fusionray.safety.signing import build_signer
    from fusionray.safety.signing_keys import SigningConfig

    signing = {"certificate": options.certificate, "key": options.key}
    return build_signer(validate(SigningConfig, signing, "--certificate, --key"))


def write_signed(
    image: Image,
    output: Path,
    bundle: Bundle,
    options: argparse.Namespace,
    *,
    made_of: str,
    signer: Signer,
    model: str | None = None,
) -> None:
    """Encode, mark and sign a picture and write it.

    `made_of`: file of the picture that was changed; the result keeps its metadata as the options say, and stores
    colours as coarsely as that did. `model`: what made it, if that is more than the bundle.

    Raises: SigningFailed, OSError.
    """
    from fusionray.bundle.bundle import bundle_hash
    from fusionray.faces.image_files.headers.image_header import has_half_chroma
    from fusionray.faces.image_files.metadata import read_metadata
    from fusionray.safety.mark import Mark, MarkConfig
    from fusionray.safety.output import encode_output
    from fusionray.safety.provenance import Provenance

    changed = Path(made_of).read_bytes()
    data = encode_output(
        image,
        Provenance(model or bundle.description.name, bundle_hash(bundle)),
        find_format(output),
        signer=signer,
        mark=Mark(MarkConfig(enabled=True)) if options.mark else None,
        metadata=read_metadata(changed, options.metadata),
        half_chroma=has_half_chroma(changed),
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(data)
