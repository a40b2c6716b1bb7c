"""The report of a search: the best settings, all trials, learning curves, and the importance of settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusionray.evaluation.metric_table import load_table
from fusionray.evaluation.report.documents import Report, write_report
from fusionray.reporting.figures import Figures
from fusionray.reporting.page import PageSection, PageTable
from fusionray.tuning.charts import draw_importance, draw_learning_curves, draw_parallel_coordinates
from fusionray.tuning.importance import common_images
from fusionray.tuning.plan import SearchPlan
from fusionray.tuning.records import SearchRecords, TrialRecord
from fusionray.tuning.space import Space, format_value, short_names


def write_search_report(
    plan: SearchPlan,
    records: SearchRecords,
    trials: Sequence[TrialRecord],
    *,
    best: TrialRecord,
    importance: Mapping[str, float],
    figures: Figures,
) -> list[str]:
    """Write `report.html`, `report.md` and its images into the search's folder; return the file names."""
    config = plan.config
    better = "lower" if config.mode == "min" else "higher"
    notes = [
        f"Metric: {config.metric} ({better} is better) on held-out people; {plan.images} images per trial. The first "
        "trial is the unchanged training.",
        f"This is one search with one seed: the best of {len(trials)} trials is partly luck. Train it again with "
        "another run.seed before you rely on the difference.",
    ]
    blocks = [
        PageSection(
            "Learning curves",
            [draw_learning_curves(config.metric, trials, best.name)],
            "The metric at each evaluation. One line for each trial; dotted lines were stopped early.",
            narrow=True,
        ),
        PageSection(
            "Settings and results",
            [draw_parallel_coordinates(config.space, config.metric, trials, best.name)],
            "One line for each trial; dotted lines were stopped early and end at their last value.",
        ),
    ]
    if importance:
        note = (
            f"Share in the variance of the metric after {common_images(trials)} images, which all trials saw. With "
            f"{len(trials)} trials the shares are rough estimates."
        )
        blocks.append(PageSection("Importance of settings", [draw_importance(config.space, importance)], note))
    report = Report(
        f"Search '{config.name}'",
        figures,
        load_table(),
        notes,
        command="fusionray train --config best.yaml",
        listings=[
            list_trials(plan, records, trials),
            *list_failed(records, trials),
            *list_transfers(records, trials, config.space),
        ],
        blocks=blocks,
    )
    return write_report(plan.folder, report)


def list_trials(plan: SearchPlan, records: SearchRecords, trials: Sequence[TrialRecord]) -> PageTable:
    """List all trials."""
    space = plan.config.space
    rows = [
        (
            record.name,
            record.status,
            str(record.last.images if record.last else 0),
            f"{record.last.value:.4g}" if record.last else "",
            str(len(records.attempts(record.name))),
            *(format_value(record.settings[key]) for key in space),
        )
        for record in trials
    ]
    head = ("trial", "status", "images", plan.config.metric, "starts", *short_names(space).values())
    return PageTable(
        "trials", head, rows, "Finished: trained on all images. Stopped: was worse than others after as many images."
    )


def list_failed(records: SearchRecords, trials: Sequence[TrialRecord]) -> list[PageTable]:
    """List why trials failed, if any did."""
    rows = [(record.name, records.last_error(record.name)) for record in trials if record.status == "failed"]
    return [PageTable("failed", ("trial", "why"), rows, "The same command tries them again.")] if rows else []


def list_transfers(records: SearchRecords, trials: Sequence[TrialRecord], space: Space) -> list[PageTable]:
    """List the checkpoints that were copied between members, if there are any."""
    rows = [
        (
            record.name,
            transfer.source_trial,
            str(transfer.images),
            *(format_value(transfer.settings[key]) for key in space),
        )
        for record in trials
        for transfer in records.transfers(record.name)
    ]
    head = ("trial", "checkpoint of", "images", *short_names(space).values())
    caption = "The worst members continued from a copy of a better member's checkpoint."
    return [PageTable("checkpoint transfers", head, rows, caption)] if rows else []
