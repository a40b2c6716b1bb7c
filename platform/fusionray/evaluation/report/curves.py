"""Quality during training: curves of the run in the tracker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusionray.errors import TrackerFailed
from fusionray.evaluation.report.drawing import Curve, draw_curves
from fusionray.evaluation.report.goals import Table
from fusionray.reporting.page import PageSection
from fusionray.tracking import STORE_NAME, read_run_metrics

PREFIX = "validation_"
SQLITE = "sqlite:///"


def show_quality(training: Mapping[str, Any], uri: str, table: Table) -> tuple[list[PageSection], list[str]]:
    """Draw the held-out quality of a training over the images seen, and say why if it cannot be read.

    `training` is the configuration that the model carries; `uri` is the evaluation's own store. No curve, no block.
    """
    try:
        curves = read_quality(training, uri, table)
    except TrackerFailed as error:
        return [], [f"The curves of the training are left out: {error}"]
    # One point is no curve.
    charts = draw_curves({name: points for name, points in curves.items() if len(points) > 1}, PREFIX)
    note = "Measured while the model was trained, on people of the validation split."
    return ([PageSection("Quality over the images seen", charts, note, columns=True)] if charts else []), []


def read_quality(training: Mapping[str, Any], uri: str, table: Table) -> dict[str, Curve]:
    """Read the metrics of held-out people; none if no store has the run.

    Raises: TrackerFailed.
    """
    run, tracking = training.get("run", {}), training.get("tracking", {})
    store = find_store(run, tracking, uri)
    if store is None:
        return {}
    metrics = read_run_metrics(store, tracking.get("experiment", "fusionray"), run["name"], PREFIX)
    return {name: points for name, points in metrics.items() if tells_quality(name, table)}


def find_store(run: Mapping[str, Any], tracking: Mapping[str, Any], uri: str) -> str | None:
    """Return the store of a training if it is an existing file, or the evaluation's own store.

    Other servers are not contacted: a missing one would block for minutes.
    """
    if not {"name", "output"} <= run.keys():
        return None  # an imported model
    store: str = tracking.get("uri") or f"{SQLITE}{Path(run['output']) / STORE_NAME}"
    is_file = store.startswith(SQLITE) and Path(store.removeprefix(SQLITE)).is_file()
    return store if is_file or store == uri else None


def tells_quality(name: str, table: Table) -> bool:
    """Return whether a metric is of held-out people; if the table has its key, only with a goal."""
    key = name.removeprefix(PREFIX)
    known = table.keys.get(key)
    return key != name and (known is None or known.paired is not None or known.unpaired is not None)
