"""What a plan starts from: the times that a run measured, the size of its state, and what its data costs to read."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from fusionray.checkpoint.index import DTYPES, read_table
from fusionray.checkpoint.info import CheckpointInfo, find_checkpoint, read_info
from fusionray.config import validate
from fusionray.data.decoding import CropDecoder
from fusionray.data.pairs import crops_from_tables
from fusionray.data.segments import Segment
from fusionray.data.shard_files import list_files
from fusionray.data.shards import read_manifest
from fusionray.environment import resolve_location
from fusionray.errors import InputMissing
from fusionray.training.config import TrainConfig

# Rows that are decoded to time it.
DECODED_ROWS = 256
# Bytes of a gradient by the compression of the exchange; powersgd depends on the shapes, and counts as uncompressed.
GRADIENT_BYTES = {"none": 4, "bf16": 2, "fp16": 2, "powersgd": 4}


@dataclass(frozen=True)
class DataCost:
    """What an image costs: bytes read from storage, and seconds of one core that decode it with its source."""

    image_bytes: float
    decode_seconds: float


@dataclass(frozen=True)
class MeasuredRun:
    """A run as its newest checkpoint describes it.

    `compute_seconds`: of a step, on one worker, without waiting for data or for other workers. `spread`: its standard
    deviation over its median. `exchanged_bytes`: of the gradients of a step; `messages`: networks that exchange.
    `stall_seconds`, `save_seconds`: for which a checkpoint holds training up, and until it is whole; None if the run
    has not measured a save.
    """

    folder: str
    num_workers: int
    local_batch: float
    compute_seconds: float
    spread: float
    parameters: int
    exchanged_bytes: float
    messages: int
    checkpoint_bytes: int
    stall_seconds: float | None
    save_seconds: float | None
    config: TrainConfig


def read_run(location: str) -> MeasuredRun:
    """Read what a run measured from its newest checkpoint.

    Raises: CheckpointMissing; InputMissing if the checkpoint has no times.
    """
    folder = find_checkpoint(resolve_location(location))
    info = read_info(folder)
    timing = info.timing
    if not timing.get("time_step_ms"):
        raise InputMissing(
            f"{folder}: holds no times of steps; let the run log before it saves (budget.log_every_images, now "
            f"{info.config.get('budget', {}).get('log_every_images')}), or train again with this version"
        )
    config = validate(TrainConfig, info.config, folder)
    step = timing["time_step_ms"] / 1000
    waiting = timing.get("exposed_communication_share", 0.0) + timing.get("share_data_wait", 0.0)
    workers = round(timing["num_workers"])
    names = count_parameters(folder, info)
    parameters = sum(names.values())
    return MeasuredRun(
        folder=folder,
        num_workers=workers,
        local_batch=timing["global_batch"] / workers,
        compute_seconds=step * max(0.0, 1 - waiting),
        spread=timing.get("own_spread", 0.0),
        parameters=parameters,
        exchanged_bytes=parameters * GRADIENT_BYTES[config.engine.parallel.compression],
        messages=len(names),
        checkpoint_bytes=sum(info.files.values()),
        stall_seconds=timing.get("save_stall_seconds"),
        save_seconds=timing.get("save_seconds"),
        config=config,
    )


def count_parameters(folder: str, info: CheckpointInfo) -> dict[str, int]:
    """Count the trained values of a checkpoint by network; running statistics, which are few, count with them.

    Raises: CheckpointMissing.
    """
    found: dict[str, int] = {}
    for name, entry in read_table(folder, info).tensors.items():
        kind, network, *_ = name.split(".")
        if kind == "networks" and DTYPES[entry.dtype].is_floating_point:
            found[network] = found.get(network, 0) + math.prod(entry.shape)
    return found


def measure_data(shards: str, config: TrainConfig) -> DataCost:
    """Time the decoding of some rows of the training split, on one thread of this machine.

    Raises: InputMissing, ShardCorrupt.
    """
    folder = resolve_location(shards)
    manifest = read_manifest(folder)
    files = list_files(folder, manifest, "train")
    crops = crops_from_tables([files.read(Segment(0, np.arange(min(DECODED_ROWS, files.rows[0]))))])
    chosen = crops.select(np.arange(len(crops)))
    decoder = CropDecoder(manifest.size, threads=1)
    try:
        decoder.decode(chosen)
        start = time.perf_counter()
        decoder.decode(chosen)
        seconds = time.perf_counter() - start
    finally:
        decoder.close()
    # Each row is read once an epoch; its source is another row, which is in memory and is decoded again.
    return DataCost(files.row_bytes, seconds / len(chosen) * config.family.num_roles)
