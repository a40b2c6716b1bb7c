"""Draw calibration data: inputs to calibrate and to measure quantized generators, from crops of the run's shards.

N rows, S crop size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fusionray.checkpoint.models import StoredData
from fusionray.data.decoding import CropDecoder
from fusionray.data.pairs import crops_from_tables
from fusionray.data.segments import Segment
from fusionray.data.shard_files import list_files
from fusionray.data.shards import MANIFEST_NAME, Manifest, Split, read_manifest
from fusionray.errors import ConfigInvalid, ShardMismatch
from fusionray.recipes.bundle_export import BundleExport
from fusionray.runtime.pixels import FloatArray
from fusionray.storage import filesystem as storage

NUM_CALIBRATION = 64
NUM_HELD_OUT = 64
DECODE_THREADS = 2
SYNTHETIC_SEED = 20261122


@dataclass(frozen=True, eq=False)
class CalibrationData:
    """Inputs of a generator by name, float32 [N,...] each: `calibration` ones, and `held_out` ones to measure.

    `measured_on`: where the held-out crops come from. `outputs`: the names of the generator's outputs.
    """

    calibration: Mapping[str, FloatArray]
    held_out: Mapping[str, FloatArray]
    measured_on: str
    outputs: tuple[str, ...]


def draw_calibration_data(bundle_export: BundleExport, data: StoredData, shards: str | None = None) -> CalibrationData:
    """Draw calibration inputs from the training split, held-out ones from the validation split; the same every time.

    `data` is the data configuration of the run; `shards` replaces its shards. If the run's shards are gone, the family
    draws synthetic crops.

    Raises: ConfigInvalid if the family defines no inputs; InputMissing if the shards are missing; ShardMismatch;
        ShardCorrupt.
    """
    if bundle_export.make_inputs is None:
        raise ConfigInvalid("precisions: this recipe has no inputs to measure variants on; export fp32 only")
    folder = shards or data.shards
    if shards is None and bundle_export.draw_fallback and not storage.exists(storage.join(folder, MANIFEST_NAME)):
        held_out = bundle_export.draw_fallback(NUM_HELD_OUT, SYNTHETIC_SEED + 1)
        calibration = bundle_export.draw_fallback(NUM_CALIBRATION, SYNTHETIC_SEED)
        measured_on = bundle_export.fallback_name
    else:
        manifest = read_manifest(folder)
        # Shards of pictures have no template.
        if manifest.size != data.size or manifest.template not in ("", data.template):
            raise ShardMismatch(
                f"{folder}: holds crops of {manifest.size} px at {manifest.template}, the model takes {data.size} px "
                f"at {data.template}; name other shards with shards=FOLDER"
            )
        calibration = read_crops(folder, manifest, "train", NUM_CALIBRATION)
        held_out = read_crops(folder, manifest, "validation", NUM_HELD_OUT)
        measured_on = "held-out crops of its shards"
    graph = bundle_export.graphs[0]

    def name_inputs(crops: Tensor) -> dict[str, FloatArray]:
        assert bundle_export.make_inputs is not None
        return {name: rows.numpy() for name, rows in zip(graph.inputs, bundle_export.make_inputs(crops), strict=True)}

    return CalibrationData(name_inputs(calibration), name_inputs(held_out), measured_on, graph.outputs)


def read_crops(folder: str, manifest: Manifest, split: Split, count: int) -> Tensor:
    """Read crops uint8 [N,3,S,S] at equal distances in the first file of a split, whose rows are sorted by person."""
    files = list_files(folder, manifest, split)
    if not files.rows:
        raise ShardMismatch(f"{folder}: its {split} split is empty; prepare shards with {split}_fraction above 0")
    rows = np.unique(np.linspace(0, files.rows[0] - 1, count).astype(np.int64))
    crops = crops_from_tables([files.read(Segment(0, rows))])
    decoder = CropDecoder(manifest.size, DECODE_THREADS)
    try:
        return decoder.decode(crops.select(np.arange(len(crops))))
    finally:
        decoder.close()
