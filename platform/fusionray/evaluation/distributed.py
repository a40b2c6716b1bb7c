"""Distribute the work of an evaluation over the connected Ray cluster."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from fusionray.errors import FusionRayError
from fusionray.evaluation.work_items import EvalContext, EvalSpec, ItemKind, WorkItem, merge_results
from fusionray.metrics.fusion_metrics import MetricColumns
from fusionray.metrics.pair_plan import RowIndices
from fusionray.ray_cluster.actor_pool import ActorBatch, actor_pool, unpack
from fusionray.ray_cluster.connection import require_cpus
from fusionray.training.config import WorkersConfig


class EvalActor:
    """A Ray actor that loads model and evaluators once, then measures work items."""

    def __init__(self, spec: EvalSpec) -> None:
        self.spec = spec
        self.context: EvalContext | None = None

    def __call__(self, batch: ActorBatch) -> Iterator[ActorBatch]:
        """Measure work items; yield a pickled result for each: kind, numbers and columns, or a FusionRayError.

        The error is returned as a value: Ray would wrap an error that is raised here and extend its message, and
        would retry without end after an error in the constructor.
        """
        item: WorkItem
        for item in unpack(batch):
            try:
                self.context = self.context or EvalContext(self.spec)
                yield pickle_result((item.kind, item.numbers, item.measure(self.context)))
            except FusionRayError as error:
                yield pickle_result(error)


def pickle_result(value: Any) -> ActorBatch:
    """Pickle a result for the driver."""
    return {"answer": np.array([pickle.dumps(value)], dtype=object)}


def measure_items(
    spec: EvalSpec, items: Sequence[WorkItem], workers: WorkersConfig
) -> dict[ItemKind, tuple[RowIndices, MetricColumns]]:
    """Measure all work items on the cluster, with a progress bar; return numbers (ascending) and columns by kind.

    Raises: ClusterUnavailable without a free CPU for each worker; any FusionRayError of a worker.
    """
    require_cpus(workers.num_workers, workers.cpus_per_worker)
    pool = actor_pool(
        EvalActor,
        spec,
        items,
        size=workers.num_workers,
        num_cpus=workers.cpus_per_worker,
        num_gpus=1 if spec.use_gpu else 0,
    )
    found: dict[ItemKind, list[tuple[RowIndices, MetricColumns]]] = {"pairs": [], "crops": [], "clips": []}
    total = sum(len(item.numbers) for item in items)
    with pool as answers, tqdm(desc="evaluate", total=total, unit=" pictures", file=sys.stderr) as bar:
        for batch in answers:
            for pickled in batch["answer"]:
                value = pickle.loads(pickled)  # noqa: S301 - written by the workers of this run
                if isinstance(value, FusionRayError):
                    raise value
                kind, numbers, columns = value
                found[kind].append((numbers, columns))
                bar.update(len(numbers))
    return {kind: merge_results(parts) for kind, parts in found.items()}
