"""Encoded crops to tensors, in threads: the decoders leave Python's lock while they work."""

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

from fusionray.data.pairs import Crop, SampledPairs
from fusionray.errors import ShardCorrupt
from fusionray.types import PairBatch, Rows

# Small enough that the threads end together, large enough that handing over costs nothing.
CROPS_PER_TASK = 16


class CropDecoder:
    """Decode crops of one size."""

    def __init__(self, size: int, threads: int) -> None:
        self.size = size
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self.memory = ReusedMemory()

    def decode(self, crops: Sequence[Crop]) -> Tensor:
        """Decode crops to uint8 [N,3,S,S] RGB.

        Raises: ShardCorrupt naming the person of a crop that cannot be decoded or has another size.
        """
        images_N3SS = self.memory.take((len(crops), 3, self.size, self.size))
        planes_N3SS = images_N3SS.numpy()

        def decode_some(start: int) -> None:
            pixels_SS3 = allocate_scratch(self.size)
            for index in range(start, min(start + CROPS_PER_TASK, len(crops))):
                picture = decode_crop(crops[index], pixels_SS3)
                cv2.split(picture, list(planes_N3SS[index]))

        list(self.executor.map(decode_some, range(0, len(crops), CROPS_PER_TASK)))
        return images_N3SS

    def decode_regions(self, regions: Sequence[bytes | memoryview], crops: Sequence[Crop]) -> Tensor:
        """Decode where the faces of `crops` are: uint8 [N,1,S,S].

        Raises: ShardCorrupt naming the person of a region that cannot be decoded or has another size.
        """
        planes_N1SS = self.memory.take((len(regions), 1, self.size, self.size))
        planes_NSS = planes_N1SS.numpy()[:, 0]

        def decode_one(row: int) -> None:
            planes_NSS[row] = decode_region(regions[row], self.size, crops[row].identity)

        list(self.executor.map(decode_one, range(len(regions))))
        return planes_N1SS

    def close(self) -> None:
        """End the threads."""
        self.executor.shutdown(cancel_futures=True)


def allocate_scratch(size: int) -> NDArray[np.uint8]:
    """Allocate a picture, uint8 [S,S,3], that is written and read again at once.

    It begins half-way between two multiples of 32 bytes. libjpeg-turbo writes rows that are so aligned past the cache,
    which is right for pictures that nobody looks at soon; reading them back costs a fifth of the whole decoding.
    Source: libjpeg-turbo, simd/x86_64/jdcolext-avx2.asm (its two ways to store).
    """
    length = size * size * 3
    memory = np.empty(length + 48, np.uint8)
    start = -memory.ctypes.data % 32 + 16
    return memory[start : start + length].reshape(size, size, 3)


class ReusedMemory:
    """Tensors whose memory is used again once nothing refers to it.

    Fresh memory costs a page fault every 4 kB: a quarter of what decoding a small crop does.
    """

    def __init__(self) -> None:
        self.free: dict[tuple[int, ...], list[NDArray[np.uint8]]] = {}

    def take(self, shape: tuple[int, ...]) -> Tensor:
        """Give out a tensor, uint8, of any content."""
        free = self.free.setdefault(shape, [])
        memory = free.pop() if free else np.empty(shape, np.uint8)
        # A tensor and its slices keep alive the very array they were made of: its end is theirs.
        array = memory[:]
        weakref.finalize(array, free.append, memory).atexit = False
        return torch.from_numpy(array)


def decode_crop(crop: Crop, pixels_SS3: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Decode one crop to uint8 [S,S,3] RGB, into `pixels_SS3` where its format allows it.

    Raises: ShardCorrupt naming the person.
    """
    size = len(pixels_SS3)
    try:
        if simplejpeg.is_jpeg(crop.image):
            height, width, *_ = simplejpeg.decode_jpeg_header(crop.image)
            # A larger one does not fit; it is refused below like any other size.
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
) -> tuple[Rows, ...]:
    """Decode draws, role by role. Regions are decoded for the last role alone: sources need none.

    `labels`: the number of each person; without them labels can be compared between roles of one row only.
    """

    def number(role: int) -> Tensor:
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
        Rows(
            images[role * count : (role + 1) * count],
            number(role),
            region if role == roles[-1] else None,
            {column: gather_truth(group, column, role) for column in group[0].crops.truth},
        )
        for role in roles
    )


def collate_pairs(group: Sequence[SampledPairs], decoder: CropDecoder) -> PairBatch:
    """Decode draws of two roles into one batch of pairs."""
    return PairBatch.from_rows(*decode_rows(group, decoder))


def gather_truth(group: Sequence[SampledPairs], column: str, role: int) -> Tensor:
    """Gather a column of the draws of a role, float32 [M,P]."""
    return torch.from_numpy(np.concatenate([draws.crops.truth[column][draws.indices[:, role]] for draws in group]))
