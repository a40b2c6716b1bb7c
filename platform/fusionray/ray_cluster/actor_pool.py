"""A pool of Ray actors that works through a list of items, on Ray Data."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

# Fail after this time instead of waiting silently for a cluster without a free CPU.
NO_PROGRESS_SECONDS = 600.0

ActorBatch = dict[str, NDArray[Any]]
"""A batch of Ray Data: columns of one length."""

BatchWorker = Callable[[ActorBatch], Iterator[ActorBatch]]


@contextlib.contextmanager
def actor_pool(
    worker: Callable[[Any], BatchWorker],
    task: Any,
    items: Sequence[Any],
    *,
    size: int,
    num_cpus: float,
    num_gpus: float = 0,
) -> Iterator[Iterator[ActorBatch]]:
    """Give each item to one of at most `size` actors; iterate over their answers in the order in which they arrive.

    The actors end with the block, also where it is left early.

    An actor is `worker(task)`, called with {"item": [a pickled item]}. Each batch that it yields is yielded here alone.
    """
    import ray.data

    rows = [{"item": pickle.dumps(item)} for item in items]
    dataset = ray.data.from_items(rows, override_num_blocks=len(rows))
    # The caller draws its own progress bar. Each answer is its own block; otherwise small answers arrive at the end.
    dataset.context.enable_progress_bars = False
    dataset.context.target_max_block_size = 1
    dataset.context.print_on_execution_start = False
    dataset.context.execution_no_progress_timeout_s = NO_PROGRESS_SECONDS
    answers = dataset.map_batches(
        worker,
        fn_constructor_args=(task,),
        batch_size=1,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        compute=ray.data.ActorPoolStrategy(size=min(size, len(rows))),
    )
    # A generator, because it can be closed: one that the garbage collector closes later would start another Ray.
    batches = (batch for batch in answers.iter_batches(batch_size=None, prefetch_batches=0))
    with contextlib.closing(batches):
        yield batches


def unpack(batch: ActorBatch) -> list[Any]:
    """Unpickle the items of a batch with which an actor is called."""
    return [pickle.loads(pickled) for pickled in batch["item"]]  # noqa: S301 - written by the driver of this very run
