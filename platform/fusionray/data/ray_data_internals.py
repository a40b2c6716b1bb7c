"""What Ray Data has no public way for, in one place: written for Ray 2.60, and tested with it."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.data import DataIterator, Dataset
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.data._internal.iterator.stream_split_iterator import SplitCoordinator, StreamSplitDataIterator
from ray.data._internal.logical.interfaces import LogicalPlan
from ray.data._internal.logical.operators import StreamingSplit

from fusionray.environment import WORKER_VARIABLE

# Blocks that wait for their consumer while the executor rests: one to give, one to follow.
WAITING_BLOCKS = 2
REST_SECONDS = 0.01
# Ray Data's processes need none of the modules that training workers preload (training/run/preload.py).
READER_ENVIRONMENT = {"env_vars": {WORKER_VARIABLE: ""}}


class RestWhileFull(ExecutionCallback):  # type: ignore[misc]  # Ray Data has no types
    """Let the executor rest while blocks wait for their consumer.

    A task whose block nobody takes counts as ready, so the executor would ask for it again without a pause: two thirds
    of a core, as long as training is slower than reading.
    """

    def on_execution_step(self, executor: Any) -> None:
        """Wait here, in the executor's own thread, until a block is taken or the execution ends."""
        _, state = executor._output_node
        while len(state.output_queue) >= WAITING_BLOCKS and not executor._shutdown:
            time.sleep(REST_SECONDS)


def split_dataset(dataset: Dataset) -> DataIterator:
    """Iterate over a data set whose executor runs in a process of its own on this node: `dataset.streaming_split(1)`.

    Ray's own function would give that process the environment of its caller, a training worker.
    """
    here = ray.get_runtime_context().get_node_id()
    split = StreamingSplit(
        num_splits=1, equal=False, input_dependencies=[dataset._logical_plan.dag], locality_hints=[here]
    )
    whole = Dataset._from_parent(dataset, LogicalPlan(split, dataset.context))
    options = {"max_concurrency": 2, "label_selector": {"ray.io/node-id": here}, "runtime_env": READER_ENVIRONMENT}
    coordinator = SplitCoordinator.options(**options).remote(whole, 1, [here])
    return StreamSplitDataIterator(coordinator, 0, 1)


def kill_coordinator(split: DataIterator) -> None:
    """End the execution behind an iterator of `streaming_split` at once, also where a task hangs on the storage.

    The tasks of an owner that is dead end with it. Without this, the execution would end when its tasks do.
    """
    ray.kill(split._coord_actor)
