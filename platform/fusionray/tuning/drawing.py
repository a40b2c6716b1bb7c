"""The charts of a search's report. Does not import Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusionray.reporting.charts import AXIS_WIDTH, Line, ParallelAxis, draw_bar, draw_lines, draw_parallel
from fusionray.reporting.parts import Chart, Row, Rows
from fusionray.tuning.records import TrialRecord
from fusionray.tuning.space import Space, short_names, write_value


def draw_settings(space: Space, metric: str, trials: Sequence[TrialRecord], best: str) -> Chart:
    """Draw each trial as a line over one axis per setting and one for its last metric."""
    shown = [record for record in trials if record.last is not None]
    names = short_names(space)
    values = [record.last.value for record in shown if record.last]
    low, high = min(values, default=0.0), max(values, default=1.0)
    span = (high - low) or 1.0
    axes = [
        ParallelAxis(names[key], [(range_.place(end), write_value(end)) for end in range_.ends()])
        for key, range_ in space.items()
    ]
    axes.append(ParallelAxis(metric.removeprefix("validation_"), [(0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")]))
    lines = []
    for record in shown:
        assert record.last is not None
        heights = [range_.place(record.settings[key]) for key, range_ in space.items()]
        heights.append((record.last.value - low) / span)
        lines.append(Line(list(enumerate(heights)), **style(record, best)))
    title = f"Settings of {len(lines)} trials, and the {metric} of each"
    return Chart("parallel", title, draw_parallel(axes, lines, title=title), least_pixels=AXIS_WIDTH * len(axes))


def draw_learning(metric: str, trials: Sequence[TrialRecord], best: str) -> Chart:
    """Draw the metric of each trial over its images."""
    lines = [
        Line([(report.images, report.value) for report in record.reports], with_dots=True, **style(record, best))
        for record in trials
        if record.reports
    ]
    svg = draw_lines(lines, title=f"{metric} of each trial over the images seen", x_label="images seen")
    return Chart("learning", metric, svg)


def style(record: TrialRecord, best: str) -> dict[str, Any]:
    """Choose the line style of a trial: the best and the default stand out, stopped trials are dotted."""
    dotted = record.status == "stopped"
    default = " (default)" if record.number == 0 else ""
    if record.name == best:
        return {"kind": "main", "label": f"best: {record.name}{default}", "dotted": dotted}
    if record.number == 0:
        return {"kind": "second", "label": f"default: {record.name}", "dotted": dotted}
    return {"kind": "other", "dotted": dotted}


def draw_importance(space: Space, shares: Mapping[str, float]) -> Rows:
    """Draw the share of each setting in the variance of the metric, the largest on top."""
    names = short_names(space)
    keys = sorted(shares, key=lambda key: -shares[key])
    return Rows(
        [
            Row(names[key], draw_bar(shares[key], title=f"{names[key]} {shares[key]:.2f}"), f"{shares[key]:.2f}")
            for key in keys
        ]
    )
