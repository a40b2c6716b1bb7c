"""Load the crops that an evaluation needs: plan pairs of pictures over a split, and read only the rows in the plan.

The crops stay encoded (JPEG or PNG); the workers decode them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fusionray.data.pairs import EncodedCrops, SampledPairs, crops_from_tables
from fusionray.data.segments import Segment
from fusionray.data.shard_files import list_files, read_split
from fusionray.data.shards import Manifest, Split
from fusionray.errors import ShardMismatch
from fusionray.evaluation.config import EvaluateConfig
from fusionray.metrics.pair_plan import PairPlan, RowIndices, plan_pairs


@dataclass(frozen=True, eq=False)
class EvalDataset:
    """N encoded crops, the pairs to form of them, and the place of each crop in the shards.

    `plan`: pairs and gallery pictures as indices into `crops`, not as rows of the split. `files`: names of all shard
    files of the split. `file` int64 [N]: index into `files` of each crop. `row` int64 [N]: its row in that file.
    """

    crops: EncodedCrops
    plan: PairPlan
    files: tuple[str, ...]
    file: RowIndices
    row: RowIndices

    def person(self, crop: int) -> str:
        """Return the name of the person whom a crop shows; `crop` in 0..N-1."""
        return self.crops.people[int(self.crops.person[crop])]

    def locate(self, crop: int) -> tuple[str, int, str]:
        """Return the name of the shard file, the row in it, and the person of a crop; `crop` in 0..N-1."""
        return self.files[int(self.file[crop])], int(self.row[crop]), self.person(crop)


def load_dataset(config: EvaluateConfig, manifest: Manifest) -> EvalDataset:
    """Plan the pairs of `config.split` and read their crops, and those of the gallery, from the shards.

    Equal shards and settings give an equal dataset. The crops are in the order of their rows in the split.

    Raises: ShardMismatch if the split has fewer than two people; ShardCorrupt if a file cannot be read.
    """
    check_split(config.data, manifest, config.split)
    names = read_split(config.data, manifest, config.split, ["identity"]).column("identity").to_pylist()
    settings = config.face_fusion
    plan = plan_pairs(
        names, pairs=config.pairs, people=settings.people, gallery_images=settings.gallery_images, seed=config.seed
    )
    # Steps of skin are measured in regions that are skin only.
    files = list_files(config.data, manifest, config.split, with_regions=manifest.skin_regions)
    used = plan.used_rows()
    ends = np.cumsum(files.rows, dtype=np.int64)
    file = np.searchsorted(ends, used, side="right")
    row = used - (ends - np.array(files.rows, np.int64))[file]
    crops = crops_from_tables(files.read(segment) for segment in group_by_file(file, row))
    return EvalDataset(
        crops,
        PairPlan(
            np.searchsorted(used, plan.pairs), np.searchsorted(used, plan.gallery), plan.num_people, plan.num_single
        ),
        files.names,
        file,
        row,
    )


def group_by_file(file: RowIndices, row: RowIndices) -> Iterator[Segment]:
    """Yield a `Segment` per shard file with the rows to read from it, in the order of the files.

    `file` and `row` are as in `EvalDataset`; within a file, `row` must ascend.
    """
    for number in np.unique(file):
        yield Segment(int(number), row[file == number])


def check_split(folder: str, manifest: Manifest, split: Split) -> None:
    """Check that a split has the two people that a pair needs. `folder` appears in the error message only.

    Raises: ShardMismatch if the split is missing or has fewer than two people; other splits are not tried.
    """
    people = manifest.splits[split].identities if split in manifest.splits else 0
    if people >= 2:
        return
    known = ", ".join(f"{name} {info.identities}" for name, info in manifest.splits.items())
    remedy = "with more people" if split == "train" else f"with a larger {split}_fraction"
    if split == "test":
        remedy += ", or evaluate with split=validation, by which models were chosen"
    raise ShardMismatch(
        f"{folder}: its {split} split has {people} people, but pairs need two (people by split: {known}); "
        f"prepare again {remedy}"
    )


def compact(draws: SampledPairs) -> SampledPairs:
    """Return equal pairs that hold only the crops in use, each copied once.

    The result is small enough to send to a worker: it shares no memory with the shard tables.
    """
    chosen, indices = np.unique(draws.indices, return_inverse=True)
    crops = draws.crops
    kept = EncodedCrops(
        [bytes(crops.images[index]) for index in chosen.tolist()],
        crops.people,
        crops.person[chosen],
        {name: values[chosen] for name, values in crops.truth.items()},
        [bytes(region) for region in crops.select_regions(chosen)] or None,
    )
    return SampledPairs(kept, indices.reshape(draws.indices.shape))
