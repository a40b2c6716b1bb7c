"""Batch-size search: the most images that a worker can compute at once."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch
import torch.distributed as dist

from fusionray.errors import TrainingFailed
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.memory import is_out_of_memory, largest_batch, peak_bytes
from fusionray.training.engine.optimizers.build import create_states
from fusionray.training.engine.running_statistics import RunningStatistics
from fusionray.types import Batch

# Beyond this, larger batches gain no speed anywhere; it bounds the search where memory is not the limit.
MOST_IMAGES = 1024


def fit_batch(engine: Engine, sample: Batch) -> None:
    """Set an engine's batch size, and global batch, where they are `auto`; all ranks call it before the first step.

    `sample`: a few images of the stream (uint8 on the CPU); the search repeats their rows. Every phase runs without an
    update, so the networks do not change.

    Raises: TrainingFailed if the fewest images do not fit.
    """
    config = engine.config
    grows = not engine.global_batch
    if config.batch_size != "auto" and not grows:
        return
    if isinstance(config.batch_size, int) and grows:
        engine.batch_partition.set_global_batch(config.batch_size * engine.num_ranks)
        return
    for optimizer in engine.optimizers.values():
        create_states(optimizer)
    most, fewest = MOST_IMAGES if grows else engine.local_batch_images, engine.batch_partition.fewest
    size = largest_batch(lambda images: try_batch(engine, sample, images), most=most, fewest=fewest)
    if not size:
        raise TrainingFailed(
            f"{fewest} image(s) at a time do not fit into {engine.memory_bytes / 2**30:.2f} GiB; set "
            "engine.activation_checkpointing=true, allow more memory (engine.memory_gib on a CPU), or use a smaller "
            "preset"
        )
    if grows:
        # Kernels are fastest on multiples of 8.
        engine.batch_partition.set_global_batch((size - size % 8 if size >= 8 else size) * engine.num_ranks)
    else:
        engine.batch_partition.set_batch_size(size)


def try_batch(engine: Engine, sample: Batch, images: int) -> float:
    """Return the memory that `images` images need, as a fraction of the limit; infinite if memory runs out.

    The largest fraction over all ranks: ranks may have different limits, and must make the same decision.
    """
    index = torch.arange(images) % len(sample)
    local_batch = sample.map(lambda value: value[index])
    before = RunningStatistics(engine.networks.values())
    former, engine.batch_partition.batch_size = engine.batch_size, images
    try:
        with isolated(engine):
            need = peak_bytes(engine.device, lambda: compute_once(engine, local_batch)) / engine.memory_bytes
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        need = math.inf
    finally:
        engine.batch_partition.batch_size = former
    before.restore()
    for optimizer in engine.optimizers.values():
        optimizer.zero_grad(set_to_none=True)
    if engine.device.type == "cuda":
        torch.cuda.empty_cache()
    if engine.host_group is not None:
        largest = torch.tensor(need, dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=engine.host_group)
        need = float(largest)
    return need


@contextlib.contextmanager
def isolated(engine: Engine) -> Iterator[None]:
    """Compute without other ranks, which would wait for one whose memory runs out, without compiling or recording.

    torch.compile would build graphs for every size that is tried, and leaves a function eager for ever after too many.
    Eager passes keep at least the activations that compiled ones keep, so what fits here fits there.
    """
    with contextlib.ExitStack() as stack:
        for wrapped in engine.wrapped.values():
            stack.enter_context(wrapped.isolated())
        if engine.passes.graphs is not None:
            stack.enter_context(engine.passes.graphs.paused())
        if engine.chosen.compile:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


def compute_once(engine: Engine, local_batch: Batch) -> None:
    """Run every phase forward and backward on a local batch at once; nothing is exchanged or updated."""
    micros = engine.passes.prepare(local_batch)
    for phase in engine.recipe.phases:
        micros, _ = engine.passes.accumulate(phase, micros)
