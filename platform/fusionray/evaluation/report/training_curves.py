"""Curves of the validation metrics during training, read from the tracker of the model's run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusionray.config import hide_password
from fusionray.errors import TrackerFailed
from fusionray.evaluation.metric_table import MetricTable
from fusionray.evaluation.report.charts import Curve, draw_curves
from fusionray.reporting.page import PageSection
from fusionray.tracking.runs import read_run_metrics
from fusionray.tracking.store import SQLITE, STORE_NAME

PREFIX = "validation_"


def draw_training_curves(
    training: Mapping[str, Any], uri: str, table: MetricTable
) -> tuple[list[PageSection], list[str]]:
    """Draw the validation metrics of a training over the images seen: blocks of the report, and warnings.

    `training` is the configuration that the model carries; `uri` is the evaluation's own store. Without curves there
    is no block; a warning says why the tracker cannot be read.
    """
    try:
        curves = read_training_curves(training, uri, table)
    except TrackerFailed as error:
        return [], [f"The curves of the training are left out: {error}"]
    # A single point makes no curve.
    charts = draw_curves({name: points for name, points in curves.items() if len(points) > 1}, PREFIX)
    note = "Measured while the model was trained, on people of the validation split."
    return ([PageSection("Quality over the images seen", charts, note, columns=True)] if charts else []), []


def read_training_curves(training: Mapping[str, Any], uri: str, table: MetricTable) -> dict[str, Curve]:
    """Read the validation metrics of a run; empty if no store has the run.

    Raises: TrackerFailed.
    """
    run, tracking = training.get("run", {}), training.get("tracking", {})
    store = find_store(run, tracking, uri)
    if store is None:
        return {}
    metrics = read_run_metrics(store, tracking.get("experiment", "fusionray"), run["name"], PREFIX)
    return {name: points for name, points in metrics.items() if is_quality_metric(name, table)}


def find_store(run: Mapping[str, Any], tracking: Mapping[str, Any], uri: str) -> str | None:
    """Return the store of a training: a file that the run names, else that of the evaluation.

    Bundles keep no folder of the machine that trained them. Other servers than the evaluation's are not contacted: a
    missing one would block for minutes.
    """
    if not {"name", "output"} <= run.keys():
        return None  # an imported model
    recorded: str = tracking.get("uri") or f"{SQLITE}{Path(run['output']) / STORE_NAME}"
    for store in (recorded, uri):
        if store.startswith(SQLITE) and Path(store.removeprefix(SQLITE)).is_file():
            return store
    # A checkpoint names no password.
    return uri if hide_password(recorded) == hide_password(uri) else None


def is_quality_metric(name: str, table: MetricTable) -> bool:
    """Return whether a metric is a validation metric that is worth a curve: a metric of the table needs a goal."""
    key = name.removeprefix(PREFIX)
    known = table.metrics.get(key)
    return key != name and (known is None or known.paired is not None or known.unpaired is not None)
