"""The dataset of an evaluation: the rows of its plan, read from the shards and still encoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fusionray.data.order import Segment
from fusionray.data.pairs import Crops, SampledPairs, crops_from_tables
from fusionray.data.reading import list_files, read_split
from fusionray.data.shards import Manifest, Split
from fusionray.errors import ShardMismatch
from fusionray.evaluation.config import EvaluateConfig
from fusionray.metrics.protocol import PairPlan, Rows, plan_pairs


@dataclass(frozen=True, eq=False)
class EvalDataset:
    """Crops and their places: names of `files`, and `file` and `row` int64 [N] of every crop.

    `plan` holds indices of these crops, not of rows of the split.
    """

    crops: Crops
    plan: PairPlan
    files: tuple[str, ...]
    file: Rows
    row: Rows

    def person(self, crop: int) -> str:
        """Name the person of a crop."""
        return self.crops.people[int(self.crops.person[crop])]

    def place(self, crop: int) -> tuple[str, int, str]:
        """Return shard file, row and person of a crop."""
        return self.files[int(self.file[crop])], int(self.row[crop]), self.person(crop)


def load_dataset(config: EvaluateConfig, manifest: Manifest) -> EvalDataset:
    """Plan the pairs of a split, and read only the rows that they need.

    Raises: ShardMismatch if the split has fewer than two people; ShardCorrupt.
    """
    check_split(config.data, manifest, config.split)
    names = read_split(config.data, manifest, config.split, ["identity"]).column("identity").to_pylist()
    plan = plan_pairs(
        names, pairs=config.pairs, people=config.people, gallery_images=config.gallery_images, seed=config.seed
    )
    files = list_files(config.data, manifest, config.split)
    used = plan.used_rows()
    ends = np.cumsum(files.rows, dtype=np.int64)
    file = np.searchsorted(ends, used, side="right")
    row = used - (ends - np.array(files.rows, np.int64))[file]
    crops = crops_from_tables(files.read(segment) for segment in segments(file, row))
    return EvalDataset(
        crops,
        PairPlan(
            np.searchsorted(used, plan.pairs), np.searchsorted(used, plan.gallery), plan.num_people, plan.num_single
        ),
        files.names,
        file,
        row,
    )


def segments(file: Rows, row: Rows) -> Iterator[Segment]:
    """Yield the rows to read from each file, in ascending order."""
    for number in np.unique(file):
        yield Segment(int(number), row[file == number])


def check_split(folder: str, manifest: Manifest, split: Split) -> None:
    """Check that a split has two people; there is no fallback to another split.

    Raises: ShardMismatch.
    """
    people = manifest.splits[split].identities if split in manifest.splits else 0
    if people >= 2:
        return
    known = ", ".join(f"{name} {info.identities}" for name, info in manifest.splits.items())
    remedy = "with more people" if split == "train" else f"with a larger {split}_fraction"
    if split == "test":
        remedy += ", or evaluate on people that models were chosen by: split=validation"
    raise ShardMismatch(
        f"{folder}: its {split} split has {people} people, and pairs need two (people by split: {known}); "
        f"prepare again {remedy}"
    )


def compact(draws: SampledPairs) -> SampledPairs:
    """Copy only the crops that draws need, so that a message to a worker is small."""
    chosen, indices = np.unique(draws.indices, return_inverse=True)
    crops = draws.crops
    kept = Crops(
        [bytes(crops.images[index]) for index in chosen.tolist()],
        crops.people,
        crops.person[chosen],
        {name: values[chosen] for name, values in crops.truth.items()},
    )
    return SampledPairs(kept, indices.reshape(draws.indices.shape))
