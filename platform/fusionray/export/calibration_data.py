"""Calibration data: inputs to calibrate and measure variants of a generator, made of crops of its run's shards.

N rows, S crop size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fusionray.checkpoint.models import StoredData
from fusionray.data.decoding import CropDecoder
from fusionray.data.order import Segment
from fusionray.data.pairs import crops_from_tables
from fusionray.data.shard_files import list_files
from fusionray.data.shards import MANIFEST_NAME, Manifest, Split, read_manifest
from fusionray.errors import ConfigInvalid, ShardMismatch
from fusionray.recipes.family import BundleExport
from fusionray.runtime.pixels import FloatArray
from fusionray.storage import filesystem as storage

NUM_CALIBRATION = 64
NUM_HELD_OUT = 64
DECODE_THREADS = 2
SYNTHETIC_SEED = 20261122


@dataclass(frozen=True, eq=False)
class CalibrationData:
    """Inputs of a generator by name, [N,...] each: to calibrate, and held-out ones to measure.

    `judged_on` describes the held-out ones. `outputs`: the names of the generator's outputs.
    """

    calibration: Mapping[str, FloatArray]
    held_out: Mapping[str, FloatArray]
    judged_on: str
    outputs: tuple[str, ...]


def draw_calibration_data(delivery: BundleExport, data: StoredData, shards: str | None = None) -> CalibrationData:
    """Draw the same inputs again and again for a checkpoint: calibration from the split that is learned from.

    `data` says what its run learned from; `shards` are those of its run, if no others are named.

    Raises: ConfigInvalid if the family says nothing of inputs; InputMissing if the shards are not there, ShardMismatch,
        ShardCorrupt.
    """
    if delivery.make_inputs is None:
        raise ConfigInvalid("precisions: this recipe gives no inputs to measure variants on; export fp32 only")
    folder = shards or data.shards
    if shards is None and delivery.draw_fallback and not storage.exists(storage.join(folder, MANIFEST_NAME)):
        held_out = delivery.draw_fallback(NUM_HELD_OUT, SYNTHETIC_SEED + 1)
        calibration = delivery.draw_fallback(NUM_CALIBRATION, SYNTHETIC_SEED)
        judged_on = delivery.fallback_name
    else:
        manifest = read_manifest(folder)
        # Pictures are aligned to no template.
        if manifest.size != data.size or manifest.template not in ("", data.template):
            raise ShardMismatch(
                f"{folder}: holds crops of {manifest.size} px at {manifest.template}, the model takes {data.size} px "
                f"at {data.template}; name other ones with shards=FOLDER"
            )
        calibration = read_crops(folder, manifest, "train", NUM_CALIBRATION)
        held_out = read_crops(folder, manifest, "validation", NUM_HELD_OUT)
        judged_on = "held-out crops of its shards"
    graph = delivery.graphs[0]

    def name_inputs(crops: Tensor) -> dict[str, FloatArray]:
        assert delivery.make_inputs is not None
        return {name: rows.numpy() for name, rows in zip(graph.inputs, delivery.make_inputs(crops), strict=True)}

    return CalibrationData(name_inputs(calibration), name_inputs(held_out), judged_on, graph.outputs)


def read_crops(folder: str, manifest: Manifest, split: Split, count: int) -> Tensor:
    """Read crops spread over the first file of a split, in which those of a person lie together: uint8 [N,3,S,S]."""
    files = list_files(folder, manifest, split)
    rows = np.unique(np.linspace(0, files.rows[0] - 1, count).astype(np.int64))
    crops = crops_from_tables([files.read(Segment(0, rows))])
    decoder = CropDecoder(manifest.size, DECODE_THREADS)
    try:
        return decoder.decode(crops.select(np.arange(len(crops))))
    finally:
        decoder.close()
