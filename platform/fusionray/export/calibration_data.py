"""Sources and targets on which variants of a generator are calibrated and judged: crops of its run's shards.

Where the shards are out of reach, synthetic faces stand in for them. N pairs, S crop size, L length of a source.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fusionray.checkpoint.models import TrainedFusion
from fusionray.data import synthetic
from fusionray.data.decoding import CropDecoder
from fusionray.data.order import Segment
from fusionray.data.pairs import Crop
from fusionray.data.reading import list_files
from fusionray.data.shards import MANIFEST_NAME, Manifest, Split, read_manifest
from fusionray.errors import ShardMismatch
from fusionray.nets.pixels import to_float
from fusionray.recipes.arcface_crop import ArcFaceCrop, crop_to_arcface_affine
from fusionray.runtime.pixels import FloatArray
from fusionray.storage import filesystem as storage

NUM_CALIBRATION = 64
NUM_HELD_OUT = 64
DECODE_THREADS = 2
SYNTHETIC_SEED = 20261122


@dataclass(frozen=True, eq=False)
class Pairs:
    """What a generator is fed: `sources` [N,L] and `targets` [N,3,S,S] in [-1,1]."""

    sources: FloatArray
    targets: FloatArray

    def inputs(self) -> dict[str, FloatArray]:
        """Give them by the names that the inputs of an exported generator have."""
        return {"source": self.sources, "target": self.targets}


@dataclass(frozen=True, eq=False)
class CalibrationData:
    """Pairs to calibrate with, pairs of other people to judge by, and what these were."""

    calibration: Pairs
    held_out: Pairs
    judged_on: str


def draw_calibration_data(trained: TrainedFusion, shards: str | None = None) -> CalibrationData:
    """Draw the same pairs again and again for a checkpoint: calibration from the split that is learned from.

    `shards` are those of its run, if no others are named.

    Raises: InputMissing if the shards that were named are not there, ShardMismatch, ShardCorrupt.
    """
    folder = shards or trained.config.data.shards
    if shards is None and not storage.exists(storage.join(folder, MANIFEST_NAME)):
        held_out = make_pairs(trained, render_crops(trained, NUM_HELD_OUT, SYNTHETIC_SEED + 1))
        calibration = make_pairs(trained, render_crops(trained, NUM_CALIBRATION, SYNTHETIC_SEED))
        return CalibrationData(calibration, held_out, "synthetic faces")
    manifest, data = read_manifest(folder), trained.config.data
    if (manifest.size, manifest.template) != (data.size, data.template):
        raise ShardMismatch(
            f"{folder}: holds crops of {manifest.size} px at {manifest.template}, the model takes {data.size} px at "
            f"{data.template}; name other ones with shards=FOLDER"
        )
    calibration = make_pairs(trained, read_crops(folder, manifest, "train", NUM_CALIBRATION))
    held_out = make_pairs(trained, read_crops(folder, manifest, "validation", NUM_HELD_OUT))
    return CalibrationData(calibration, held_out, "held-out crops of its shards")


def read_crops(folder: str, manifest: Manifest, split: Split, count: int) -> Tensor:
    """Read crops spread over the first file of a split, in which those of a person lie together: uint8 [N,3,S,S]."""
    files = list_files(folder, manifest, split)
    rows = np.unique(np.linspace(0, files.rows[0] - 1, count).astype(np.int64))
    table = files.read(Segment(0, rows))
    columns = (table.column(name).to_pylist() for name in ("image", "identity"))
    decoder = CropDecoder(manifest.size, DECODE_THREADS)
    try:
        return decoder.decode([Crop(image, identity) for image, identity in zip(*columns, strict=True)])
    finally:
        decoder.close()


def render_crops(trained: TrainedFusion, count: int, seed: int) -> Tensor:
    """Render people who do not exist: uint8 [N,3,S,S]."""
    people, looks = synthetic.sample_identities(count, seed), synthetic.sample_attributes(count, seed)
    # The middle half of the picture, where the renderer puts the face.
    view = torch.tensor([[0.5, 0.0, 0.25], [0.0, 0.5, 0.25]]).expand(count, 2, 3)
    pictures = synthetic.render(people, looks, trained.generator.config.size, view)
    return (pictures.clamp(0, 1) * 255).round().to(torch.uint8)


@torch.no_grad()
def make_pairs(trained: TrainedFusion, crops: Tensor) -> Pairs:
    """Give each crop, uint8 [N,3,S,S], a source: the crop half of the set away, nearly always another person's."""
    targets = to_float(crops)
    window = ArcFaceCrop(crop_to_arcface_affine(trained.config.data.template))
    sources = trained.reader(window(targets.roll(len(crops) // 2, 0)))
    return Pairs(sources.numpy(), targets.numpy())
