"""The result of a search: the best trial, its gain over the default, its preset, figures, report and bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from fusionray.config import merge_trees
from fusionray.environment import REGISTRY_PREFIX
from fusionray.errors import TrainingFailed
from fusionray.reporting.figures import FIGURES_NAME, Figures, MeasuredFigure, write_figures
from fusionray.storage import filesystem as storage
from fusionray.tracking.runs import RunTracker, close_run
from fusionray.tuning.config import TuneConfig
from fusionray.tuning.importance import measure_importance
from fusionray.tuning.plan import SearchPlan
from fusionray.tuning.records import SearchRecords, TrialRecord, repeated_images, trained_images
from fusionray.tuning.report import write_search_report
from fusionray.tuning.sampler import MODE_SIGNS
from fusionray.tuning.space import Settings, build_tree, format_settings

PRESET_NAME = "best.yaml"
BUNDLE_FOLDER = "bundle"


@dataclass(frozen=True)
class SearchResult:
    """The result of a search and its folder; `registered` is `models:/name@alias`, or empty."""

    folder: str
    preset: str
    best: TrialRecord
    default: TrialRecord
    figures: Figures
    registered: str

    @property
    def summary(self) -> str:
        """Summarise the search in two lines."""
        assert self.best.last is not None
        gain = self.figures.figures.get("gain_over_default")
        comparison = "the default did not finish" if gain is None else f"{gain.value:.4g} better than the default"
        if self.best.number == 0:
            comparison = "the default is the best"
        registered = f", registered as {self.registered}" if self.registered else ""
        return (
            f"{self.preset}: {self.best.name} has {self.best.last.value:.4g}, {comparison}"
            f" ({format_settings(self.best.settings)}){registered}\n{self.folder}/report.html"
        )


def conclude(plan: SearchPlan) -> SearchResult:
    """Write figures, report and preset from the records, close the search's run, register the bundle if configured.

    Raises: TrainingFailed if no trial finished.
    """
    records = SearchRecords(plan.folder)
    trials = records.trials()
    uri = plan.train.tracking.uri
    assert uri is not None, "open_search names the store"
    best = choose_best(trials, plan.config.mode)
    if best is None:
        close_run(uri, plan.parent_run, "FAILED")
        raise TrainingFailed(f"search '{plan.config.name}': {explain_no_best(trials, records)}")
    importance = measure_importance(plan.config.space, plan.config.mode, trials, seed=plan.config.seed)
    measured = measure(plan, records, trials, best)
    figures = write_figures(plan.folder, "tune", measured, explain_missing_figures(measured, importance))
    preset = storage.join(plan.folder, PRESET_NAME)
    storage.write_atomic(preset, write_preset(plan.config, best).encode())
    files = write_search_report(plan, records, trials, best=best, importance=importance, figures=figures)
    registered = register(plan, best, uri) if plan.config.register_as else ""
    track(plan, figures, uri, [storage.join(plan.folder, name) for name in (FIGURES_NAME, PRESET_NAME, *files)])
    return SearchResult(plan.folder, preset, best, trials[0], figures, registered)


def choose_best(trials: Sequence[TrialRecord], mode: str) -> TrialRecord | None:
    """Return the finished trial with the best last value; stopped trials are ignored."""
    finished = [record for record in trials if record.status == "finished" and record.last is not None]
    sign = MODE_SIGNS[mode]
    return max(finished, key=lambda record: sign * record.last.value if record.last else 0.0, default=None)


def explain_no_best(trials: Sequence[TrialRecord], records: SearchRecords) -> str:
    """Explain why there is no best trial."""
    failed = [
        f"{record.name} failed: {records.last_error(record.name)}" for record in trials if record.status == "failed"
    ]
    if failed:
        return failed[0]
    return "no trial finished; raise max_minutes and run the same command again to continue"


def measure(
    plan: SearchPlan, records: SearchRecords, trials: Sequence[TrialRecord], best: TrialRecord
) -> dict[str, MeasuredFigure]:
    """Compute the figures of the search."""
    config, default = plan.config, trials[0]
    assert best.last is not None
    attempts = {record.name: records.attempts(record.name) for record in trials}
    trained = sum(trained_images(found) for found in attempts.values())
    repeated = [images for found in attempts.values() for images in repeated_images(found)]
    counts = {status: sum(record.status == status for record in trials) for status in ("finished", "stopped", "failed")}
    figures = {"best_value": MeasuredFigure(value=best.last.value, unit=config.metric)}
    if default.status == "finished" and default.last is not None:
        gain = MODE_SIGNS[config.mode] * (best.last.value - default.last.value)
        figures["default_value"] = MeasuredFigure(value=default.last.value, unit=config.metric)
        figures["gain_over_default"] = MeasuredFigure(
            value=gain, unit=config.metric, goal="> 0", goal_low=0.0, holds=gain > 0
        )
    figures |= {f"trials_{status}": MeasuredFigure(value=count, unit="trials") for status, count in counts.items()}
    # The images of a copied checkpoint count once, for the trial that trained it.
    figures["images_trained"] = MeasuredFigure(value=trained, unit="images")
    figures["images_without_stopping"] = MeasuredFigure(value=len(trials) * plan.images, unit="images")
    figures["restarts"] = MeasuredFigure(value=len(repeated), unit="restarts")
    figures["repeated_images"] = MeasuredFigure(value=max(repeated, default=0), unit="images, at most in one restart")
    figures["search_minutes"] = MeasuredFigure(value=records.spent_seconds() / 60, unit="minutes")
    return figures


def explain_missing_figures(measured: Mapping[str, MeasuredFigure], importance: Mapping[str, float]) -> dict[str, str]:
    """Explain missing figures: no importance, or no default to compare with."""
    reasons = {} if importance else {"importance": "fewer than four trials reported, or all values are equal"}
    unfinished = "the first trial, which is the unchanged training, did not finish"
    return reasons | {key: unfinished for key in ("default_value", "gain_over_default") if key not in measured}


def write_preset(config: TuneConfig, best: TrialRecord) -> str:
    """Write the best configuration as a file for `fusionray train --config`."""
    assert best.last is not None
    settings: Settings = best.settings
    tree = merge_trees(config.train, build_tree(config.space, settings))
    tree = merge_trees(tree, {"run": {"name": f"{config.name}-best", "output": config.output}})
    ordered: dict[str, Any] = {"preset": tree.pop("preset")} if "preset" in tree else {}
    text = yaml.safe_dump({**ordered, **tree}, sort_keys=False, allow_unicode=True, width=120)
    return (
        f"# The best of the search '{config.name}': {best.name}, {config.metric} {best.last.value:.6g} after "
        f"{best.last.images} images.\n# fusionray train --config {PRESET_NAME}\n{text}"
    )


def register(plan: SearchPlan, best: TrialRecord, uri: str) -> str:
    """Export the best trial's checkpoint and register the bundle; return its location in the registry."""
    from fusionray.export.export import ExportConfig, export

    assert best.last is not None
    name = plan.config.register_as
    export(
        ExportConfig(
            checkpoint=best.last.run,
            output=storage.join(plan.folder, BUNDLE_FOLDER),
            name=name,
            tracking_uri=uri,
            tracking_run=best.tracking_run,
            alias=plan.config.alias,
        )
    )
    return f"{REGISTRY_PREFIX}{name}@{plan.config.alias}"


def track(plan: SearchPlan, figures: Figures, uri: str, files: Sequence[str]) -> None:
    """Log figures and report to the search's run, and close the run."""
    tracker = RunTracker(uri, plan.parent_run)
    tracker.log(0, {key: figure.value for key, figure in figures.figures.items()})
    for location in files:
        tracker.log_file(location)
    close_run(uri, plan.parent_run)
