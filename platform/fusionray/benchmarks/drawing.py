"""The picture of a benchmark: each figure against its goal, and where the time of a step goes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from fusionray.benchmarks.findings import Key
from fusionray.evaluation.report.figures import Figures

HOLDS, FAILS, INFORMS = "#2f7d4f", "#b23a3a", "#8a8f98"
# A bar that is many times its goal would leave no room for the others.
LONGEST = 2.5


def draw(figures: Figures, keys: Mapping[str, Key], ledgers: Mapping[str, Mapping[str, float]]) -> bytes:
    """Draw bars of value / goal (the line is the goal) and, below, stacked bars of the time ledgers; PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Plot

    num_bars = max(1, len(figures.figures))
    heights = [0.36 * num_bars + 1.2, *([0.5 * len(ledgers) + 1.6] if ledgers else [])]
    plot = Plot(figsize=(11, sum(heights)), layout="constrained")
    FigureCanvasAgg(plot)
    grid = plot.add_gridspec(len(heights), 1, height_ratios=heights)
    draw_figures(plot.add_subplot(grid[0]), figures, keys)
    if ledgers:
        draw_ledgers(plot.add_subplot(grid[1]), ledgers)
    buffer = io.BytesIO()
    plot.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def draw_figures(axes: Any, figures: Figures, keys: Mapping[str, Key]) -> None:
    """Draw a bar a figure, in goals; one without a goal is drawn in its own unit."""
    for place, (key, figure) in enumerate(figures.figures.items()):
        goal = keys[key].goal
        wanted = None if goal is None else goal.at_least if goal.at_least is not None else goal.at_most
        length = figure.value / wanted if wanted else figure.value
        colour = {True: HOLDS, False: FAILS, None: INFORMS}[figure.holds]
        # What lies far beside the axes would be made room for, until nothing is left of them.
        shown = max(0.0, min(length, LONGEST))
        axes.barh(place, shown, color=colour)
        wish = f"  (goal {figure.goal})" if figure.goal else ""
        axes.text(shown + 0.02, place, f"{figure.value:.3f} {figure.unit}{wish}", va="center", fontsize=8)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_yticks(range(len(figures.figures)), list(figures.figures), fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, LONGEST + 1)
    axes.set_xlabel(
        "value / goal; the line is the goal, grey bars have none and are as long as their value", fontsize=8
    )
    axes.set_title(f"{figures.name}: {figures.machine}", fontsize=9)


def draw_ledgers(axes: Any, ledgers: Mapping[str, Mapping[str, float]]) -> None:
    """Draw the parts of each step as shares of it."""
    parts = list(dict.fromkeys(part for ledger in ledgers.values() for part in ledger))
    starts = [0.0] * len(ledgers)
    totals = [max(1e-9, sum(ledger.values())) for ledger in ledgers.values()]
    for part in parts:
        shares = [ledger.get(part, 0.0) / total for ledger, total in zip(ledgers.values(), totals, strict=True)]
        axes.barh(range(len(ledgers)), shares, left=starts, label=part)
        starts = [start + share for start, share in zip(starts, shares, strict=True)]
    names = [f"{name}\n{total:.0f} ms a step" for name, total in zip(ledgers, totals, strict=True)]
    axes.set_yticks(range(len(ledgers)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of the step", fontsize=8)
    axes.legend(fontsize=8, ncols=len(parts), loc="upper center", bbox_to_anchor=(0.4, -0.25), frameon=False)
