"""Spread the work of an evaluation over the processes of the connected Ray cluster."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fusionray.errors import FusionRayError
from fusionray.evaluation.meter import Columns
from fusionray.evaluation.protocol import Rows
from fusionray.evaluation.workload import Bench, Kind, Order, Piece, collect
from fusionray.ops.cluster import require_cpus
from fusionray.training.settings import WorkersConfig

# A cluster without a free CPU would otherwise be waited for in silence.
PATIENCE_SECONDS = 600.0

Answer = dict[str, NDArray[Any]]
"""A batch of one row: the pickled `kind`, numbers and columns of a piece, or a pickled error of ours."""


class Examiner:
    """One worker: loads model and judges once, then measures piece after piece."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.bench: Bench | None = None

    def __call__(self, batch: dict[str, NDArray[Any]]) -> Iterator[Answer]:
        """Measure pickled pieces.

        An error of ours travels as a value: raised here, Ray would wrap it and add advice of its own to its message.
        That of loading, too: raised in the constructor, it would be tried again and again.
        """
        for pickled in batch["piece"]:
            try:
                self.bench = self.bench or Bench(self.order)
                piece: Piece = pickle.loads(pickled)  # noqa: S301 - written by the driver of this very run
                yield answer((piece.kind, piece.numbers, piece.measure(self.bench)))
            except FusionRayError as error:
                yield answer(error)


def answer(value: Any) -> Answer:
    """Wrap what goes back to the driver."""
    return {"answer": np.array([pickle.dumps(value)], dtype=object)}


def measure_pieces(order: Order, pieces: Sequence[Piece], workers: WorkersConfig) -> dict[Kind, tuple[Rows, Columns]]:
    """Measure all pieces and show how far that is; numbers, ascending, and columns by kind.

    Raises: ClusterUnavailable without a free CPU for each worker; any FusionRayError of a worker.
    """
    import ray.data

    require_cpus(workers.num_workers, workers.cpus_per_worker)
    items = [{"piece": pickle.dumps(piece)} for piece in pieces]
    dataset = ray.data.from_items(items, override_num_blocks=len(items))
    # One bar of our own; and every answer is a block of its own, or the bar would stand still until the end.
    dataset.context.enable_progress_bars = False
    dataset.context.target_max_block_size = 1
    dataset.context.print_on_execution_start = False
    dataset.context.execution_no_progress_timeout_s = PATIENCE_SECONDS
    answers = dataset.map_batches(
        Examiner,
        fn_constructor_args=(order,),
        batch_size=1,
        num_cpus=workers.cpus_per_worker,
        num_gpus=1 if order.use_gpu else 0,
        compute=ray.data.ActorPoolStrategy(size=min(workers.num_workers, len(items))),
    )
    found: dict[Kind, list[tuple[Rows, Columns]]] = {"pairs": [], "crops": [], "clips": []}
    total = sum(len(piece.numbers) for piece in pieces)
    with tqdm(desc="evaluate", total=total, unit=" pictures", file=sys.stderr) as bar:
        for batch in answers.iter_batches(batch_size=None, prefetch_batches=0):
            for pickled in batch["answer"]:
                value = pickle.loads(pickled)  # noqa: S301 - written by the workers of this very run
                if isinstance(value, FusionRayError):
                    raise value
                kind, numbers, columns = value
                found[kind].append((numbers, columns))
                bar.update(len(numbers))
    return {kind: collect(parts) for kind, parts in found.items()}
