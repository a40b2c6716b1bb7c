"""Decode untrusted pictures to uint8 RGB arrays, and encode arrays."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray
from pi_heif.as_plugin import HeifImageFile
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)
from PIL import Image as PillowImage

from fusionray.errors import ImageRejected
from fusionray.faces.face import Image, Plane
from fusionray.faces.image_files.headers.heif_header import hide_boxes
from fusionray.faces.image_files.headers.image_header import ImageHeader, ImageKind, PictureFormat, read_header
from fusionray.faces.image_files.headers.jpeg_header import strip_jpeg
from fusionray.faces.image_files.headers.tiff_header import strip_tiff
from fusionray.faces.image_files.netpbm import decode_netpbm, read_netpbm
from fusionray.faces.image_files.picture_memory import allocate_picture

# Errors that Pillow's readers raise on malformed bytes.
# Tags of a TIFF, and a value of the latter.
BITS_PER_SAMPLE, PHOTOMETRIC, WHITE_IS_ZERO = 258, 262, 0
_READ_FAULTS = (OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, RuntimeError, struct.error,
                zlib.error, ArithmeticError, MemoryError, AssertionError, AttributeError)  # fmt: skip
# Pillow's open() warns of large pictures, and a warning filter is shared by all threads of a server. The limits are
# checked before, so the readers are called directly.
_PILLOW_READERS: dict[ImageKind, type[ImageFile.ImageFile]] = {
    "jpeg": JpegImagePlugin.JpegImageFile,
    "png": PngImagePlugin.PngImageFile,
    "webp": WebPImagePlugin.WebPImageFile,
    "bmp": BmpImagePlugin.BmpImageFile,
    "avif": AvifImagePlugin.AvifImageFile,
    "heic": HeifImageFile,
    "tiff": TiffImagePlugin.TiffImageFile,
}
# The header is read already; without metadata, no decoder can fail on them, or turn the picture a second time.
_STRIPPERS: dict[ImageKind, Callable[[bytes], bytes]] = {
    "jpeg": strip_jpeg,
    "avif": hide_boxes,
    "heic": hide_boxes,
    "tiff": strip_tiff,
}


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Limits of an untrusted picture, checked on its header before any pixel is decoded."""

    max_bytes: int = 32 * 2**20
    max_pixels: int = 50_000_000
    max_side: int = 16_384
    min_side: int = 16


def decode_image(data: bytes, limits: ImageLimits | None = None, *, reduction: int = 1) -> Image:
    """Decode a picture (`image_header.KINDS_READ`) to uint8 RGB [H, W, 3], writable, upright by its orientation.

    Grey, palette, CMYK and 16-bit pictures are converted; transparent pixels are blended with white; of an animation,
    or of several pages, the first is decoded. A `reduction` of 2, 4 or 8, from `choose_reduction`, makes a JPEG
    smaller as it is decoded; sides are rounded up.

    Raises:
        ImageRejected: with the reason "not_an_image", "unknown_format", "damaged", "too_large" or "too_small".
    """
    limits = limits or ImageLimits()
    if len(data) > limits.max_bytes:
        raise ImageRejected("too_large", f"the file has {len(data)} bytes, over the limit of {limits.max_bytes}")
    header = read_header(data)
    _check_size(header, limits)
    if header.kind == "netpbm":
        return np.require(_decode_netpbm(data), requirements="W")
    if header.kind in _STRIPPERS:
        data = _STRIPPERS[header.kind](data)
    pixels = _decode_jpeg(data, header, reduction) if header.kind == "jpeg" else None
    if pixels is None:
        pixels = _decode_with_pillow(data, header, reduction)
    upright = turn_upright(pixels, header.orientation)
    if not upright.flags.writeable:
        # Faces are pasted into the picture itself; Pillow's pixels are read-only.
        upright, shown = allocate_picture(*upright.shape[:2]), upright
        upright[...] = shown
    return upright


def choose_reduction(data: bytes, side: int) -> int:
    """Choose the reduction of a picture at which its shorter side still has `side` pixels; 1 if it is no JPEG.

    Raises:
        ImageRejected: with the reason "not_an_image" or "damaged".
    """
    header = read_header(data)
    if header.kind != "jpeg":
        return 1
    return max(reduction for reduction in (1, 2, 4, 8) if reduction == 1 or _shorter(header) >= reduction * side)


def _shorter(header: ImageHeader) -> int:
    return min(header.width, header.height)


def _check_size(header: ImageHeader, limits: ImageLimits) -> None:
    width, height = header.width, header.height
    if width * height > limits.max_pixels or max(width, height) > limits.max_side:
        raise ImageRejected(
            "too_large",
            f"the picture has {width} x {height} pixels; {limits.max_pixels} pixels and {limits.max_side} a side are "
            "the limit",
        )
    if _shorter(header) < limits.min_side:
        raise ImageRejected("too_small", f"the picture has {width} x {height} pixels; a side needs {limits.min_side}")


def _decode_jpeg(data: bytes, header: ImageHeader, reduction: int) -> Image | None:
    """Decode a grey or YCbCr JPEG; None if the slower and more tolerant reader has to decode it."""
    try:
        height, width, colour, _ = simplejpeg.decode_jpeg_header(data, strict=True)
        if (width, height) != (header.width, header.height) or colour not in {"YCbCr", "Gray"}:
            return None
        if reduction == 1:
            whole = allocate_picture(height, width)
            simplejpeg.decode_jpeg(data, colorspace="RGB", strict=True, buffer=whole)
            return whole
        # The decoder takes the smallest size that reaches these.
        pixels: Image = simplejpeg.decode_jpeg(
            data,
            colorspace="RGB",
            strict=True,
            min_height=-(-height // reduction),
            min_width=-(-width // reduction),
            min_factor=1,
        )
    except (ValueError, KeyError):
        # simplejpeg raises a KeyError for a subsampling without a name.
        return None
    return pixels


def _decode_netpbm(data: bytes) -> Image:
    try:
        return decode_netpbm(data, read_netpbm(data))
    except ValueError as error:
        raise ImageRejected("damaged", f"the netpbm picture cannot be decoded: {error}") from error


@contextmanager
def open_picture(data: bytes, limits: ImageLimits) -> Iterator[ImageFile.ImageFile | None]:
    """Open a picture for its metadata (`info`), without decoding pixels; None for Netpbm, which has none.

    Raises:
        ImageRejected: with the reason "not_an_image", "unknown_format", "damaged", "too_large" or "too_small".
    """
    header = read_header(data)
    _check_size(header, limits)
    if header.kind == "netpbm":
        yield None
        return
    if header.kind in ("avif", "heic"):
        data = hide_boxes(data, keep_metadata=True)
    if header.kind == "tiff":
        data = strip_tiff(data, keep_metadata=True)
    try:
        with _PILLOW_READERS[header.kind](io.BytesIO(data)) as picture:
            yield picture
    except (*_READ_FAULTS, PillowImage.DecompressionBombError) as error:
        # A WebP frame may be larger than the header states, which only its reader detects.
        raise ImageRejected("damaged", f"the {header.kind} picture cannot be read: {error}") from error


def _decode_with_pillow(data: bytes, header: ImageHeader, reduction: int) -> Image:
    try:
        with _PILLOW_READERS[header.kind](io.BytesIO(data)) as picture:
            if picture.size != (header.width, header.height):
                raise ImageRejected("damaged", f"the {header.kind} file states two different sizes")
            if reduction > 1:
                # Pillow, too, lets the decoder of a JPEG reduce by a power of two.
                picture.draft(None, (header.width // reduction, header.height // reduction))
            picture.load()
            if reduction == 1 and picture.size != (header.width, header.height):
                raise ImageRejected("damaged", f"the {header.kind} file holds a picture of another size than it states")
            return _to_rgb(picture)
    except (*_READ_FAULTS, PillowImage.DecompressionBombError) as error:
        raise ImageRejected("damaged", f"the {header.kind} picture cannot be decoded: {error}") from error


def _to_rgb(picture: PillowImage.Image) -> Image:
    if picture.mode == "F":
        raise ImageRejected("unknown_format", "pixels of floating-point numbers are not read; convert them to 16 bits")
    if picture.mode.startswith("I"):
        return _deep_grey_to_rgb(np.asarray(picture), getattr(picture, "tag_v2", {}))
    if picture.has_transparency_data:
        with_alpha = picture.convert("RGBA")
        ground = PillowImage.new("RGBA", with_alpha.size, (255, 255, 255, 255))
        return np.asarray(PillowImage.alpha_composite(ground, with_alpha).convert("RGB"))
    return np.asarray(picture.convert("RGB"))


def _deep_grey_to_rgb(grey_HW: NDArray[np.integer], tiff_tags: Mapping[int, Any]) -> Image:
    """Convert grey of 9 to 16 bits; Pillow's own conversion would clip values above 255 to white.

    Pillow leaves two things of a TIFF to us: how many bits a value has, and whether 0 is white.
    """
    bits = int(np.max(tiff_tags.get(BITS_PER_SAMPLE, 16)))
    if bits > 16:
        raise ImageRejected("unknown_format", f"grey pixels of {bits} bits are not read; convert them to 16 bits")
    grey = (grey_HW >> (bits - 8)).clip(0, 255).astype(np.uint8)
    if tiff_tags.get(PHOTOMETRIC) == WHITE_IS_ZERO:
        grey = 255 - grey
    return np.repeat(grey[..., None], 3, axis=2)


def turn_upright(image: NDArray[np.uint8], orientation: int) -> Image:
    """Undo an EXIF orientation (1..8): 5 to 8 swap the axes; then six of the values mirror one or both axes."""
    if orientation >= 5:
        image = image.transpose(1, 0, 2)
    if orientation in {2, 3, 6, 7}:
        image = image[:, ::-1]
    if orientation in {3, 4, 7, 8}:
        image = image[::-1]
    return np.ascontiguousarray(image)


def encode_plane(plane: Plane) -> bytes:
    """Encode a plane as a grey PNG, which keeps every bit."""
    return cv2.imencode(".png", plane, [cv2.IMWRITE_PNG_COMPRESSION, 3])[1].tobytes()


def encode_image(image: Image, image_format: PictureFormat = "png", quality: int = 95) -> bytes:
    """Encode a uint8 RGB [H, W, 3] picture; `quality` 1..100 is for JPEG and WebP, PNG keeps every bit.

    JPEG keeps the full colour resolution, because lips and eyes are small areas of red and white.

    Raises:
        ValueError: the format is unknown.
    """
    if image_format == "jpeg":
        contiguous = np.ascontiguousarray(image)
        return bytes(simplejpeg.encode_jpeg(contiguous, quality=quality, colorspace="RGB", colorsubsampling="444"))
    if image_format not in {"png", "webp"}:
        raise ValueError(f"image_format: {image_format!r} is not known; choose jpeg, png or webp")
    settings = [cv2.IMWRITE_WEBP_QUALITY, quality] if image_format == "webp" else [cv2.IMWRITE_PNG_COMPRESSION, 3]
    done, encoded = cv2.imencode(f".{image_format}", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), settings)
    if not done:
        raise ValueError(f"image: a picture of shape {image.shape} cannot be encoded as {image_format}")
    return encoded.tobytes()
