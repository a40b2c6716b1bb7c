"""Encode output pictures as PNG, JPEG or WebP with proof of their origin.

Every file holds an XMP packet that states that a model made it. The caller may add a visible mark (`mark`) and a signed
C2PA manifest (`signer`).
"""

from __future__ import annotations

import io

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from fusionray.faces.image_files.headers.image_header import PictureFormat
from fusionray.faces.image_files.metadata import PictureMetadata, add_jpeg_metadata
from fusionray.safety.mark import Mark
from fusionray.safety.provenance import PNG_KEY, Provenance, build_packet
from fusionray.safety.signing import Signer

NO_METADATA = PictureMetadata()


def encode_output(
    image: NDArray[np.uint8],
    provenance: Provenance,
    picture_format: PictureFormat = "png",
    quality: int = 92,
    *,
    signer: Signer | None,
    mark: Mark | None = None,
    metadata: PictureMetadata = NO_METADATA,
    half_chroma: bool = False,
) -> bytes:
    """Draw the mark on a copy of a uint8 RGB [H, W, 3] picture, encode it with its XMP packet, and sign the file.

    `quality`: 1 to 100, for JPEG and WebP; PNG ignores it. `signer` of None leaves the file without a C2PA manifest,
    `mark` of None without a visible mark; a picture too small for the mark gets none. `metadata` is what the file keeps
    of the picture that it was made of. `half_chroma`: as for `encode_picture`. Returns the bytes of the file.

    Raises: ValueError if the format is not png, jpeg or webp; SigningFailed.
    """
    marked = image if mark is None else mark.draw(image)
    data = encode_picture(marked, build_packet(provenance), picture_format, quality, metadata, half_chroma=half_chroma)
    return data if signer is None else signer.sign(data, f"image/{picture_format}", provenance)


def encode_picture(
    image: NDArray[np.uint8],
    packet: bytes,
    picture_format: PictureFormat,
    quality: int,
    metadata: PictureMetadata = NO_METADATA,
    *,
    half_chroma: bool = False,
) -> bytes:
    """Encode a uint8 RGB [H, W, 3] picture and its XMP packet, unsigned; returns the bytes of the file.

    PNG ignores `quality` (1 to 100). JPEG keeps full colour resolution from a quality of 90 on (4:4:4), and halves it
    in both directions (4:2:0) below, or with `half_chroma`: where a picture comes from such a JPEG, full resolution
    shows nothing more and takes half as long again.

    Raises: ValueError if the format is not png, jpeg or webp.
    """
    if picture_format == "jpeg":
        sampling = "420" if half_chroma or quality < 90 else "444"
        pixels = np.ascontiguousarray(image)
        data = simplejpeg.encode_jpeg(pixels, quality=quality, colorspace="RGB", colorsubsampling=sampling)
        return add_jpeg_metadata(data, packet, metadata)
    picture = Image.fromarray(image)
    buffer = io.BytesIO()
    kept = {name: value for name, value in vars(metadata).items() if value is not None}
    if picture_format == "png":
        text = PngImagePlugin.PngInfo()
        text.add_itxt(PNG_KEY, packet.decode())
        # On photographs, level 1 takes a quarter of the time of the default level 6, and files are a fifth longer.
        picture.save(buffer, "PNG", pnginfo=text, compress_level=1, **kept)
    elif picture_format == "webp":
        picture.save(buffer, "WEBP", xmp=packet, quality=quality, method=2, **kept)
    else:
        raise ValueError(f"picture_format: {picture_format!r} is not one of png, jpeg, webp")
    return buffer.getvalue()
