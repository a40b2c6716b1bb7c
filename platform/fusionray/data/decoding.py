"""Decode encoded crops to tensors, in threads: the decoders release the GIL.

Crops that cannot be decoded raise ShardCorrupt with the name of the person.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionray.data.pairs import EncodedCrop, SampledPairs
from fusionray.errors import ShardCorrupt
from fusionray.types import DecodedRows, PairBatch

# Few enough that the threads finish at about the same time, enough that scheduling costs little.
CROPS_PER_TASK = 16


class CropDecoder:
    """Decode crops of `size` x `size` pixels in `threads` threads; `close` stops the threads."""

    def __init__(self, size: int, threads: int) -> None:
        self.size = size
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self.buffers = BufferPool()

    def decode(self, crops: Sequence[EncodedCrop]) -> Tensor:
        """Decode crops to uint8 [N,3,S,S] RGB.

        Raises: ShardCorrupt naming the person of a crop that cannot be decoded or has another size.
        """
        images_N3SS = self.buffers.allocate((len(crops), 3, self.size, self.size))
        planes_N3SS = images_N3SS.numpy()

        def decode_some(start: int) -> None:
            pixels_SS3 = allocate_scratch_image(self.size)
            for index in range(start, min(start + CROPS_PER_TASK, len(crops))):
                picture = decode_crop(crops[index], pixels_SS3)
                cv2.split(picture, list(planes_N3SS[index]))

        list(self.executor.map(decode_some, range(0, len(crops), CROPS_PER_TASK)))
        return images_N3SS

    def decode_regions(self, regions: Sequence[bytes | memoryview], crops: Sequence[EncodedCrop]) -> Tensor:
        """Decode the regions of `crops` to uint8 [N,1,S,S], 255 where a face is.

        Raises: ShardCorrupt naming the person of a region that cannot be decoded or has another size.
        """
        planes_N1SS = self.buffers.allocate((len(regions), 1, self.size, self.size))
        planes_NSS = planes_N1SS.numpy()[:, 0]

        def decode_one(row: int) -> None:
            planes_NSS[row] = decode_region(regions[row], self.size, crops[row].identity)

        list(self.executor.map(decode_one, range(len(regions))))
        return planes_N1SS

    def close(self) -> None:
        """Stop the threads."""
        self.executor.shutdown(cancel_futures=True)


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


class BufferPool:
    """Allocate tensors whose memory is reused when no tensor refers to it any more.

    New memory costs a page fault per 4 kB: a quarter of the time that a small crop takes to decode.
    """

    def __init__(self) -> None:
        self.free: dict[tuple[int, ...], list[NDArray[np.uint8]]] = {}

    def allocate(self, shape: tuple[int, ...]) -> Tensor:
        """Return a uint8 tensor of this shape, not initialised."""
        free = self.free.setdefault(shape, [])
        memory = free.pop() if free else np.empty(shape, np.uint8)
        # The tensor and its slices keep `array` alive: it is finalized after the last of them.
        array = memory[:]
        weakref.finalize(array, free.append, memory).atexit = False
        return torch.from_numpy(array)


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


def decode_rows(
    group: Sequence[SampledPairs], decoder: CropDecoder, labels: Mapping[str, int] | None = None
) -> tuple[DecodedRows, ...]:
    """Decode draws role by role; regions only for the last role, since sources need none.

    `labels`: the label of each person. Without it, labels can only be compared between the roles of one row.

    Raises: ShardCorrupt naming the person.
    """

    def label_rows(role: int) -> Tensor:
        if labels is not None:
            return torch.tensor([labels[crop.identity] for crop in crops[role]])
        return torch.from_numpy(np.concatenate([draws.crops.person[draws.indices[:, role]] for draws in group]))

    roles = range(group[0].indices.shape[1])
    crops = [[crop for draws in group for crop in draws.crops.select(draws.indices[:, role])] for role in roles]
    count = len(crops[0])
    images = decoder.decode([crop for each in crops for crop in each])
    regions = [plane for draws in group for plane in draws.crops.select_regions(draws.indices[:, -1])]
    region = decoder.decode_regions(regions, crops[-1]) if len(regions) == count else None
    return tuple(
        DecodedRows(
            images[role * count : (role + 1) * count],
            label_rows(role),
            region if role == roles[-1] else None,
            {column: gather_truth(group, column, role) for column in group[0].crops.truth},
        )
        for role in roles
    )


def collate_pairs(group: Sequence[SampledPairs], decoder: CropDecoder) -> PairBatch:
    """Decode draws of two roles to one batch of pairs.

    Raises: ShardCorrupt naming the person.
    """
    return PairBatch.from_rows(*decode_rows(group, decoder))


def gather_truth(group: Sequence[SampledPairs], column: str, role: int) -> Tensor:
    """Gather a parameter column of one role, float32 [M,P]."""
    return torch.from_numpy(np.concatenate([draws.crops.truth[column][draws.indices[:, role]] for draws in group]))
