"""Held-out rows, the same in every validation: encoded in memory, decoded for each batch.

Shape suffixes: N rows, M draws, R roles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fusionray.data.decoding import CropDecoder, decode_rows
from fusionray.data.pairs import SampledPairs, crops_from_tables, draw_held_out_pairs, rebatch
from fusionray.data.shard_files import read_split
from fusionray.data.shards import REGION_COLUMN, Manifest, Split
from fusionray.types import Batch, DecodedRows


class HeldOutCrops:
    """`count` rows of a split, of which `collate` makes batches.

    Raises: ShardCorrupt if the split is empty.
    """

    def __init__(
        self,
        folder: str,
        manifest: Manifest,
        count: int,
        decoder: CropDecoder,
        collate: Callable[[Sequence[DecodedRows]], Batch],
        *,
        with_regions: bool,
        split: Split = "validation",
    ) -> None:
        table = read_split(folder, manifest, split, limit=count)
        if not with_regions and REGION_COLUMN in table.column_names:
            table = table.drop_columns([REGION_COLUMN])
        self.crops = crops_from_tables([table])
        self.decoder = decoder
        self.collate = collate

    def __len__(self) -> int:
        return len(self.crops)

    @cached_property
    def groups(self) -> list[str]:
        """List the group of each row: the person, or the picture it is cut from."""
        return [self.crops.people[person] for person in self.crops.person.tolist()]

    def decode(self, rows: NDArray[np.int64]) -> Tensor:
        """Decode rows to uint8 [N,3,S,S] RGB."""
        return self.decoder.decode(self.crops.select(rows))

    def batches(self, draws: NDArray[np.int64], size: int) -> Iterator[Batch]:
        """Yield batches of at most `size` draws [M,R]; labels number the people in alphabetical order."""
        labels = {person: index for index, person in enumerate(sorted(self.crops.people))}
        for group in rebatch([SampledPairs(self.crops, draws)], size):
            yield self.collate(decode_rows(group, self.decoder, labels))

    def draw(self, num_roles: int, seed: int, source_folder: str | None = None) -> NDArray[np.int64]:
        """Draw every row once, int64 [N,R]: alone, or as the target of a source that depends on the seed.

        `source_folder`: as for `pairs.draw_pairs`.
        """
        if num_roles == 1:
            return np.arange(len(self.crops))[:, None]
        return draw_held_out_pairs(self.crops, len(self.crops), seed, source_folder).indices
