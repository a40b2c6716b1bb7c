"""The pictures of a search's report, as PNG. Knows no Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusionray.evaluation.report.drawing import close_plot, open_plot
from fusionray.tuning.records import TrialRecord
from fusionray.tuning.space import Range, Space, short_names, write_value

BEST_COLOUR = "#c2410c"
DEFAULT_COLOUR = "#1d4ed8"
OTHER_COLOUR = "#9ca3af"
STOPPED_STYLE = (0, (2, 2))


def draw_parallel(space: Space, metric: str, trials: Sequence[TrialRecord], best: str) -> bytes:
    """Draw each trial as a line through its settings, an axis each, to the metric at its end."""
    shown = [record for record in trials if record.last is not None]
    names = short_names(space)
    plot = open_plot(max(6.0, 1.9 * (len(space) + 1)), 4.2)
    axes = plot.add_subplot()
    values = [record.last.value for record in shown if record.last]
    low, high = min(values, default=0.0), max(values, default=1.0)
    span = (high - low) or 1.0
    for record in shown:
        assert record.last is not None
        heights = [values.place(record.settings[key]) for key, values in space.items()]
        heights.append((record.last.value - low) / span)
        axes.plot(range(len(heights)), heights, **style(record, best))
    for column, (key, values_of) in enumerate(space.items()):
        label_axis(axes, column, values_of)
        axes.text(column, -0.16, names[key], ha="center", va="top", fontsize=9)
    last = len(space)
    axes.axvline(last, color="black", linewidth=0.8)
    for height, value in ((0.0, low), (1.0, high)):
        axes.text(last + 0.04, height, f"{value:.4g}", fontsize=8, va="center")
    axes.text(last, -0.16, metric.removeprefix("validation_"), ha="center", va="top", fontsize=9, weight="bold")
    axes.set_xlim(-0.3, last + 0.6)
    axes.set_ylim(-0.05, 1.05)
    axes.axis("off")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=3, fontsize=8, frameon=False)
    return close_plot(plot)


def label_axis(axes: Any, column: int, values: Range) -> None:
    """Draw the axis of a setting with its ends, or with all of its choices."""
    axes.axvline(column, color="black", linewidth=0.8)
    for end in values.ends():
        axes.text(column + 0.04, values.place(end), write_value(end), fontsize=8, va="center")


def draw_learning(metric: str, trials: Sequence[TrialRecord], best: str) -> bytes:
    """Draw the metric of each trial over the images that it saw."""
    plot = open_plot(8, 4)
    axes = plot.add_subplot()
    for record in trials:
        if record.reports:
            images = [report.images for report in record.reports]
            axes.plot(images, [report.value for report in record.reports], marker="o", **style(record, best))
    axes.set_xlabel("images")
    axes.set_ylabel(metric)
    axes.grid(visible=True, alpha=0.3)
    if axes.lines:
        axes.legend(fontsize=8)
    return close_plot(plot)


def style(record: TrialRecord, best: str) -> dict[str, Any]:
    """Choose how a trial is drawn: the best and the default one stand out, stopped ones are dotted."""
    dotted: dict[str, Any] = {"linestyle": STOPPED_STYLE} if record.status == "stopped" else {}
    default = " (default)" if record.number == 0 else ""
    if record.name == best:
        return {"color": BEST_COLOUR, "linewidth": 2.2, "zorder": 4, "label": f"best: {record.name}{default}", **dotted}
    if record.number == 0:
        return {"color": DEFAULT_COLOUR, "linewidth": 2.2, "zorder": 3, "label": f"default: {record.name}", **dotted}
    return {"color": OTHER_COLOUR, "linewidth": 1.2, "markersize": 3, **dotted}


def draw_importance(space: Space, shares: Mapping[str, float]) -> bytes:
    """Draw the share of each setting in the variance of the metric, the largest on top."""
    names = short_names(space)
    keys = sorted(shares, key=lambda key: shares[key])
    plot = open_plot(8, 0.8 + 0.45 * len(keys))
    axes = plot.add_subplot()
    bars = axes.barh([names[key] for key in keys], [shares[key] for key in keys], color=DEFAULT_COLOUR)
    axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    axes.set_xlim(0, 1.08)
    axes.set_xlabel("share of the variance")
    return close_plot(plot)
