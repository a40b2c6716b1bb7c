"""Finding the batch: the most images that a worker can compute at once."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from fusionray.errors import TrainingFailed
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.memory import is_out_of_memory, largest_batch, peak_bytes
from fusionray.training.engine.optimizers import create_states
from fusionray.training.engine.running_statistics import RunningStatistics
from fusionray.types import Batch

# Beyond this, larger batches gain no speed anywhere; it bounds the search where memory is not the limit.
MOST_IMAGES = 1024


def fit_batch(engine: Engine, sample: Batch) -> None:
    """Set an engine's batch size, and global batch, where they are `auto`; all ranks call it before the first step.

    `sample`: some images as the stream gives them; their rows are repeated. Every phase is run without an update, so
    networks stay as they are.

    Raises: TrainingFailed if the fewest images do not fit.
    """
    config = engine.config
    grows = not engine.global_batch
    if config.batch_size != "auto" and not grows:
        return
    if isinstance(config.batch_size, int) and grows:
        engine.division.set_global_batch(config.batch_size * engine.num_ranks)
        return
    for optimizer in engine.optimizers.values():
        create_states(optimizer)
    most, fewest = MOST_IMAGES if grows else engine.share_images, engine.division.fewest
    size = largest_batch(lambda images: try_batch(engine, sample, images), most=most, fewest=fewest)
    if not size:
        raise TrainingFailed(
            f"{fewest} image(s) at a time do not fit into {engine.memory_bytes / 2**30:.2f} GiB; set "
            "engine.recompute=true, give more memory (engine.memory_gib on a CPU), or take a smaller preset"
        )
    if grows:
        # Kernels are fastest on multiples of 8.
        engine.division.set_global_batch((size - size % 8 if size >= 8 else size) * engine.num_ranks)
    else:
        engine.division.set_batch_size(size)


def try_batch(engine: Engine, sample: Batch, images: int) -> float:
    """Return what `images` images at once need of a rank's limit, the largest share of all; infinite if it ran out.

    Shares, not bytes: ranks may have different memories, and must all decide alike.
    """
    index = torch.arange(images) % len(sample)
    share = sample.map(lambda value: value[index])
    before = RunningStatistics(engine.networks.values())
    former, engine.division.batch_size = engine.batch_size, images
    try:
        need = peak_bytes(engine.device, lambda: compute_once(engine, share)) / engine.memory_bytes
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        need = math.inf
    finally:
        engine.division.batch_size = former
    before.take_back()
    for optimizer in engine.optimizers.values():
        optimizer.zero_grad(set_to_none=True)
    if engine.device.type == "cuda":
        torch.cuda.empty_cache()
    if engine.host_group is not None:
        largest = torch.tensor(need, dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=engine.host_group)
        need = float(largest)
    return need


def compute_once(engine: Engine, share: Batch) -> None:
    """Run every phase forward and backward on a share as one batch; nothing is exchanged or updated."""
    micros = engine.prepare(share)
    for phase in engine.recipe.phases:
        micros, _ = engine.accumulate(phase, micros)
