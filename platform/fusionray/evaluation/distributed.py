"""Distribute the work of an evaluation over the connected Ray cluster."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from fusionray.errors import FusionRayError
from fusionray.evaluation.workload import EvalContext, EvalSpec, Kind, Piece, collect
from fusionray.metrics.measure import Columns
from fusionray.metrics.protocol import Rows
from fusionray.ray_cluster.actor_pool import Answer, unpack, work_through
from fusionray.ray_cluster.connection import require_cpus
from fusionray.training.config import WorkersConfig


class EvalActor:
    """A worker that loads model and evaluators once, then measures pieces."""

    def __init__(self, spec: EvalSpec) -> None:
        self.spec = spec
        self.context: EvalContext | None = None

    def __call__(self, batch: Answer) -> Iterator[Answer]:
        """Measure pieces; each answer is pickled: kind, numbers and columns of a piece, or a FusionRayError.

        The error is returned as a value: if it were raised here, Ray would wrap it and extend its message; if it were
        raised in the constructor, Ray would retry for ever.
        """
        piece: Piece
        for piece in unpack(batch):
            try:
                self.context = self.context or EvalContext(self.spec)
                yield answer((piece.kind, piece.numbers, piece.measure(self.context)))
            except FusionRayError as error:
                yield answer(error)


def answer(value: Any) -> Answer:
    """Wrap an answer for the driver."""
    return {"answer": np.array([pickle.dumps(value)], dtype=object)}


def measure_pieces(spec: EvalSpec, pieces: Sequence[Piece], workers: WorkersConfig) -> dict[Kind, tuple[Rows, Columns]]:
    """Measure all pieces with a progress bar; return numbers, ascending, and columns by kind.

    Raises: ClusterUnavailable without a free CPU for each worker; any FusionRayError of a worker.
    """
    require_cpus(workers.num_workers, workers.cpus_per_worker)
    answers = work_through(
        EvalActor,
        spec,
        pieces,
        size=workers.num_workers,
        num_cpus=workers.cpus_per_worker,
        num_gpus=1 if spec.use_gpu else 0,
    )
    found: dict[Kind, list[tuple[Rows, Columns]]] = {"pairs": [], "crops": [], "clips": []}
    total = sum(len(piece.numbers) for piece in pieces)
    with tqdm(desc="evaluate", total=total, unit=" pictures", file=sys.stderr) as bar:
        for batch in answers:
            for pickled in batch["answer"]:
                value = pickle.loads(pickled)  # noqa: S301 - written by the workers of this run
                if isinstance(value, FusionRayError):
                    raise value
                kind, numbers, columns = value
                found[kind].append((numbers, columns))
                bar.update(len(numbers))
    return {kind: collect(parts) for kind, parts in found.items()}
