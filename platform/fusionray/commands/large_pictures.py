"""Pictures of the command line that are too large to decode whole: painted, encoded and signed from file to file."""

from __future__ import annotations

import argparse
import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusionray.bands.writer import BandFormat
    from fusionray.bundle.bundle import Bundle
    from fusionray.runtime.pixels import FloatArray
    from fusionray.runtime.style_transfer.tiled_stylizer import TiledStylizer
    from fusionray.safety.signing import Signer

BAND_FORMATS: dict[str, BandFormat] = {
    ".png": "png",
    ".jpg": "jpeg",
    ".jpeg": "jpeg",
    ".tif": "tiff",
    ".tiff": "tiff",
}


def is_large(place: str) -> bool:
    """Return whether a picture is over the limits of pictures that are decoded whole."""
    from fusionray.errors import ImageRejected
    from fusionray.faces.image_files.decode import ImageLimits
    from fusionray.faces.image_files.headers.image_header import read_header

    limits = ImageLimits()
    try:
        if Path(place).stat().st_size > limits.max_bytes:
            return True
        header = read_header(Path(place).read_bytes())
    except (OSError, ImageRejected):
        # Whoever reads it whole says what is wrong with it.
        return False
    return header.width * header.height > limits.max_pixels or max(header.width, header.height) > limits.max_side


def find_band_format(output: Path, options: argparse.Namespace) -> BandFormat:
    """Return the format that the name of a result says.

    Raises: ValueError for another ending, or for metadata that such a picture cannot keep.
    """
    if output.suffix.lower() not in BAND_FORMATS:
        raise ValueError(f"{output}: the result of so large a picture must end in .png, .jpg or .tif")
    if options.metadata == "all":
        raise ValueError("--metadata all: a picture that is too large to decode whole keeps its colours alone")
    return BAND_FORMATS[output.suffix.lower()]


def write_large(
    stylizer: TiledStylizer, style: FloatArray, bundle: Bundle, options: argparse.Namespace, *, signer: Signer
) -> None:
    """Paint the content of the options in an encoded style, and write the result, marked and signed; shows progress.

    Raises: ImageRejected, PictureNotWritten, SigningFailed, OSError.
    """
    from tqdm import tqdm

    from fusionray.bands.reader import ROWS_BYTES, BandReader
    from fusionray.bands.writer import BandOutput, BandWriter
    from fusionray.bundle.bundle import bundle_hash
    from fusionray.hardware.memory import return_freed_memory
    from fusionray.safety.mark import Mark, MarkConfig
    from fusionray.safety.provenance import Provenance, build_packet

    return_freed_memory(ROWS_BYTES)
    content, output = BandReader(Path(options.content)), Path(options.output)
    provenance = Provenance(bundle.description.name, bundle_hash(bundle))
    mark = Mark(MarkConfig(enabled=True)) if options.mark else None
    encoding = BandOutput(
        find_band_format(output, options),
        xmp=build_packet(provenance),
        icc_profile=None if options.metadata == "none" else content.icc_profile,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    passes = stylizer.count_passes(options.strength)
    with draft_beside(output) as unsigned, draft_beside(output) as signed:
        with (
            tqdm(total=passes * content.height, desc="stylize", unit="row") as bar,
            BandWriter(unsigned, content.width, content.height, encoding) as writer,
        ):
            for rows in stylizer.paint(content, style, options.strength, bar.update):
                start = writer.written
                writer.write(rows if mark is None else mark.draw_rows(rows, start, content.height))
        with unsigned.open("rb") as source, signed.open("w+b") as target:
            signer.sign_stream(source, target, f"image/{encoding.format}", provenance)
        signed.replace(output)


@contextlib.contextmanager
def draft_beside(output: Path) -> Iterator[Path]:
    """Make an empty file in the folder of the result; what is left of it at the end is removed."""
    draft = output.with_name(f".{output.name}.{secrets.token_hex(6)}{output.suffix}")
    draft.open("xb").close()
    try:
        yield draft
    finally:
        draft.unlink(missing_ok=True)
