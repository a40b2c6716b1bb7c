"""Decode one crop to pixels. Does not import torch: read tasks of Ray Data call it on other nodes.

Crops that cannot be decoded raise ShardCorrupt with the name of the person.
"""

from __future__ import annotations

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from fusionray.data.pairs import EncodedCrop
from fusionray.errors import ShardCorrupt


def allocate_scratch_image(size: int) -> NDArray[np.uint8]:
    """Allocate a picture, uint8 [S,S,3], for decoding; the caller reads it back immediately.

    It starts half-way between two multiples of 32 bytes. libjpeg-turbo writes aligned rows past the cache; reading
    them back would cost a fifth of the decoding time.
    Source: libjpeg-turbo, simd/x86_64/jdcolext-avx2.asm (its two ways to store).
    """
    length = size * size * 3
    memory = np.empty(length + 48, np.uint8)
    start = -memory.ctypes.data % 32 + 16
    return memory[start : start + length].reshape(size, size, 3)


def decode_crop(crop: EncodedCrop, pixels_SS3: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Decode one crop to uint8 [S,S,3] RGB; a JPEG is decoded into `pixels_SS3`.

    Raises: ShardCorrupt naming the person.
    """
    size = len(pixels_SS3)
    try:
        if simplejpeg.is_jpeg(crop.image):
            height, width, *_ = simplejpeg.decode_jpeg_header(crop.image)
            # A JPEG of another size does not fit the buffer; it is refused below.
            fits = (height, width) == (size, size)
            buffer = pixels_SS3 if fits else None
            picture: NDArray[np.uint8] | None = simplejpeg.decode_jpeg(crop.image, fastdct=True, buffer=buffer)
        else:
            picture = cv2.imdecode(np.frombuffer(crop.image, np.uint8), cv2.IMREAD_COLOR_RGB)
    except (ValueError, cv2.error) as error:
        reason = " ".join(str(error).split())
        raise ShardCorrupt(
            f"a crop of '{crop.identity}' cannot be decoded ({reason}); prepare the data again"
        ) from None
    if picture is None or picture.shape != pixels_SS3.shape:
        found = "no picture" if picture is None else f"{picture.shape}"
        raise ShardCorrupt(
            f"a crop of '{crop.identity}' holds {found}, not {size} x {size} RGB; prepare the data again"
        )
    return picture


def decode_region(region: bytes | memoryview, size: int, identity: str) -> NDArray[np.uint8]:
    """Decode one grey PNG to uint8 [S,S].

    Raises: ShardCorrupt naming the person.
    """
    try:
        plane = cv2.imdecode(np.frombuffer(region, np.uint8), cv2.IMREAD_GRAYSCALE)
    except cv2.error:
        plane = None
    if plane is None or plane.shape != (size, size):
        found = "cannot be decoded" if plane is None else f"is {plane.shape[1]} x {plane.shape[0]}"
        raise ShardCorrupt(
            f"the region of a crop of '{identity}' {found}, not a plane of {size} x {size}; prepare the data again"
        )
    return np.asarray(plane, np.uint8)
