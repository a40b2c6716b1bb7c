"""Charts of the report of a hyperparameter search: SVG line charts and bars. Does not import Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusionray.reporting.charts import AXIS_WIDTH, ChartLine, ParallelAxis, draw_bar, draw_lines, draw_parallel
from fusionray.reporting.parts import Chart, StripRow, StripRows
from fusionray.tuning.records import TrialRecord
from fusionray.tuning.space import Space, format_value, short_names


def draw_parallel_coordinates(space: Space, metric: str, trials: Sequence[TrialRecord], best: str) -> Chart:
    """Draw a parallel-coordinates plot: a line per trial, an axis per setting, and a last axis for the metric.

    The value of a trial is that of its newest report; trials without a report are left out. `best`: name of the best
    trial, whose line is highlighted. The metric's axis runs from the lowest to the highest value shown.
    """
    shown = [record for record in trials if record.last is not None]
    names = short_names(space)
    values = [record.last.value for record in shown if record.last]
    low, high = min(values, default=0.0), max(values, default=1.0)
    span = (high - low) or 1.0
    axes = [
        ParallelAxis(names[key], [(range_.position(end), format_value(end)) for end in range_.extremes()])
        for key, range_ in space.items()
    ]
    axes.append(ParallelAxis(metric.removeprefix("validation_"), [(0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")]))
    lines = []
    for record in shown:
        assert record.last is not None
        heights = [range_.position(record.settings[key]) for key, range_ in space.items()]
        heights.append((record.last.value - low) / span)
        lines.append(ChartLine(list(enumerate(heights)), **line_style(record, best)))
    title = f"Settings of {len(lines)} trials, and the {metric} of each"
    return Chart("parallel", title, draw_parallel(axes, lines, title=title), min_pixels=AXIS_WIDTH * len(axes))


def draw_learning_curves(metric: str, trials: Sequence[TrialRecord], best: str) -> Chart:
    """Draw the metric of each trial over the training images that it has seen; trials without a report are left out.

    `best`: name of the best trial, whose line is highlighted.
    """
    lines = [
        ChartLine(
            [(report.images, report.value) for report in record.reports], with_dots=True, **line_style(record, best)
        )
        for record in trials
        if record.reports
    ]
    svg = draw_lines(lines, title=f"{metric} of each trial over the images seen", x_label="images seen")
    return Chart("learning", metric, svg)


def line_style(record: TrialRecord, best: str) -> dict[str, Any]:
    """Return the `kind`, `label` and `dotted` of a trial's `ChartLine`.

    The best trial and the default settings (trial 0) have a kind of their own and a label. Lines of stopped trials are
    dotted.
    """
    dotted = record.status == "stopped"
    default = " (default)" if record.number == 0 else ""
    if record.name == best:
        return {"kind": "main", "label": f"best: {record.name}{default}", "dotted": dotted}
    if record.number == 0:
        return {"kind": "second", "label": f"default: {record.name}", "dotted": dotted}
    return {"kind": "other", "dotted": dotted}


def draw_importance(space: Space, shares: Mapping[str, float]) -> StripRows:
    """Draw a bar per setting with its share of the metric's variance, the largest on top.

    `shares`: importance in 0..1 by dotted key of a setting in `space`, as `measure_importance` returns it.
    """
    names = short_names(space)
    keys = sorted(shares, key=lambda key: -shares[key])
    return StripRows(
        [
            StripRow(names[key], draw_bar(shares[key], title=f"{names[key]} {shares[key]:.2f}"), f"{shares[key]:.2f}")
            for key in keys
        ]
    )
