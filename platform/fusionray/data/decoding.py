"""Decode encoded crops to tensors, in threads: the decoders release the GIL.

Crops that cannot be decoded raise ShardCorrupt with the name of the person.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import cv2
import numpy as np
import torch
from torch import Tensor

from fusionray.data.crop_decoding import allocate_scratch_image, decode_crop, decode_region
from fusionray.data.pairs import EncodedCrop, SampledPairs
from fusionray.hardware.array_pool import ArrayPool
from fusionray.types import DecodedRows, PairBatch

# Few enough that the threads finish at about the same time, enough that scheduling costs little.
CROPS_PER_TASK = 16


class Labels(Protocol):
    """Labels of people by their names."""

    def __getitem__(self, name: str, /) -> int:
        """Return the label of a person."""
        ...


class CropDecoder:
    """Decode crops of `size` x `size` pixels in `threads` threads; `close` stops the threads.

    `decoded`: the crops are pixels already (segment_source.py), and only copied.
    """

    def __init__(self, size: int, threads: int, *, decoded: bool = False) -> None:
        self.size = size
        self.decoded = decoded
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        # New memory costs a quarter of the time that a small crop takes to decode.
        self.pool = ArrayPool()

    def decode(self, crops: Sequence[EncodedCrop]) -> Tensor:
        """Decode crops to uint8 [N,3,S,S] RGB.

        Raises: ShardCorrupt naming the person of a crop that cannot be decoded or has another size.
        """
        images_N3SS = torch.from_numpy(self.pool.allocate((len(crops), 3, self.size, self.size)))
        planes_N3SS = images_N3SS.numpy()

        def decode_some(start: int) -> None:
            pixels_SS3 = allocate_scratch_image(self.size)
            for index in range(start, min(start + CROPS_PER_TASK, len(crops))):
                if self.decoded:
                    planes_N3SS[index] = np.frombuffer(crops[index].image, np.uint8).reshape(planes_N3SS.shape[1:])
                    continue
                picture = decode_crop(crops[index], pixels_SS3)
                cv2.split(picture, list(planes_N3SS[index]))

        list(self.executor.map(decode_some, range(0, len(crops), CROPS_PER_TASK)))
        return images_N3SS

    def decode_regions(self, regions: Sequence[bytes | memoryview], crops: Sequence[EncodedCrop]) -> Tensor:
        """Decode the regions of `crops` to uint8 [N,1,S,S], 255 where a face is.

        Raises: ShardCorrupt naming the person of a region that cannot be decoded or has another size.
        """
        planes_N1SS = torch.from_numpy(self.pool.allocate((len(regions), 1, self.size, self.size)))
        planes_NSS = planes_N1SS.numpy()[:, 0]

        def decode_one(row: int) -> None:
            if self.decoded:
                planes_NSS[row] = np.frombuffer(regions[row], np.uint8).reshape(planes_NSS.shape[1:])
            else:
                planes_NSS[row] = decode_region(regions[row], self.size, crops[row].identity)

        list(self.executor.map(decode_one, range(len(regions))))
        return planes_N1SS

    def close(self) -> None:
        """Stop the threads."""
        self.executor.shutdown(cancel_futures=True)


def decode_rows(
    group: Sequence[SampledPairs], decoder: CropDecoder, labels: Labels | None = None
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


def decode_source_regions(draws: SampledPairs, decoder: CropDecoder) -> Tensor | None:
    """Decode the regions of the first role, uint8 [N,1,S,S], which training does not need; None if there are none.

    Raises: ShardCorrupt naming the person.
    """
    rows = draws.indices[:, 0]
    regions = draws.crops.select_regions(rows)
    return decoder.decode_regions(regions, draws.crops.select(rows)) if len(regions) == len(rows) else None


def gather_truth(group: Sequence[SampledPairs], column: str, role: int) -> Tensor:
    """Gather a parameter column of one role, float32 [M,P]."""
    return torch.from_numpy(np.concatenate([draws.crops.truth[column][draws.indices[:, role]] for draws in group]))
