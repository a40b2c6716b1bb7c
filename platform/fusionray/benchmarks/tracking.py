"""A benchmark in MLflow: its figures as metrics, machine and settings as parameters, its report as files."""

from __future__ import annotations

from datetime import UTC, datetime

from fusionray.benchmarks.results import BenchResult
from fusionray.config import Section
from fusionray.reporting.figures import FIGURES_NAME
from fusionray.reporting.page import PAGE_NAME
from fusionray.tracking.runs import RunTracker, close_run, open_run
from fusionray.tracking.store import store_errors

EXPERIMENT = "fusionray-bench"


def track(result: BenchResult, uri: str, config: Section) -> None:
    """Log a benchmark as a run of its own.

    Raises: TrackerFailed.
    """
    figures = result.figures
    started = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    parameters = {
        "machine": figures.machine,
        "code_version": figures.code_version,
        "settings": config.model_dump(mode="json"),
    }
    with store_errors("free some space, or repair the store; the figures are in the output folder"):
        run = open_run(uri, EXPERIMENT, figures.name, parameters, key=f"{figures.name}-{started}")
        tracker = RunTracker(uri, run)
        tracker.log(0, {key: figure.value for key, figure in figures.figures.items()})
        for name in (FIGURES_NAME, PAGE_NAME, result.picture):
            if (result.folder / name).exists():
                tracker.log_file(result.folder / name)
        close_run(uri, run)
