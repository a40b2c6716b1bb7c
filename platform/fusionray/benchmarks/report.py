"""The page of a benchmark: each figure with its goal, the time breakdown of a step, and the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusionray.benchmarks.findings import HEAD, BenchKey, Findings, describe_spread, list_rows
from fusionray.reporting.charts import (
    MeasuredInterval,
    choose_strip_ends,
    draw_interval,
    draw_sample,
    draw_stack,
    explain_marks,
)
from fusionray.reporting.figures import Figures, MeasuredFigure
from fusionray.reporting.page import Page, PageSection, PageTable
from fusionray.reporting.parts import Legend, StripRow, StripRows

Breakdowns = Mapping[str, Mapping[str, float]]


def build_page(title: str, figures: Figures, findings: Findings, keys: Mapping[str, BenchKey]) -> Page:
    """Build the page of a benchmark: charts of figures and breakdowns, folded tables of both, then the conditions."""
    rows = [(*row, keys[row[0]].what) for row in list_rows(figures, findings)]
    return Page(
        title,
        sections=[
            *show_figures(figures, findings, keys),
            *show_breakdowns(findings.breakdowns),
            *([PageSection("Over time", findings.charts, columns=True)] if findings.charts else []),
        ],
        tables=[PageTable("figures", (*HEAD, "what"), rows), *list_breakdowns(findings.breakdowns)],
        origin=f"{figures.machine}; fusionray {figures.code_version}.",
        notes=findings.notes,
    )


def show_figures(figures: Figures, findings: Findings, keys: Mapping[str, BenchKey]) -> list[PageSection]:
    """Show each figure as a row: the median over the rounds, on the interval from the lowest round to the highest."""
    rows = [
        show_figure(key, figure, findings.values.get(key, ()), keys[key].what)
        for key, figure in figures.figures.items()
    ]
    legend = Legend(explain_marks("from the lowest round to the highest", with_goals=True, with_open=True))
    return [PageSection("Figures and goals", [legend, StripRows(rows)])] if rows else []


def show_figure(key: str, figure: MeasuredFigure, rounds: Sequence[float], what: str) -> StripRow:
    """Show a figure as a row."""
    low, high = (min(rounds), max(rounds)) if len(rounds) > 1 else (None, None)
    measured = MeasuredInterval(figure.value, low, high, figure.goal_low, figure.goal_high, figure.holds)
    ends = choose_strip_ends(measured)
    value = f"{figure.value:.3f} {figure.unit}"
    details = [f"rounds {describe_spread(rounds)}"] if len(rounds) > 1 else []
    details += [f"goal {figure.goal}"] if figure.goal else []
    strip = draw_interval(measured, ends, title=", ".join([f"{key} {value}", *details]))
    return StripRow(key, strip, value, what, details, (f"{ends[0]:g}", f"{ends[1]:g}"), figure.holds)


def list_parts(breakdowns: Breakdowns) -> list[str]:
    """Name the parts of all breakdowns, in order."""
    return list(dict.fromkeys(part for breakdown in breakdowns.values() for part in breakdown))


def show_breakdowns(breakdowns: Breakdowns) -> list[PageSection]:
    """Show the parts of each step as shares of its time."""
    if not breakdowns:
        return []
    names = list_parts(breakdowns)
    legend = [
        (draw_sample(f'<rect class="part{number % 6}" width="20" height="16"/>'), name)
        for number, name in enumerate(names)
    ]
    rows = []
    for title, breakdown in breakdowns.items():
        parts = ", ".join(f"{name} {value:.1f}" for name, value in breakdown.items())
        strip = draw_stack(breakdown, names, title=f"{title}: {parts} ms")
        rows.append(StripRow(title, strip, f"{sum(breakdown.values()):.0f} ms a step", details=[f"{parts} ms"]))
    return [PageSection("Where the time of a step goes", [Legend(legend), StripRows(rows)])]


def list_breakdowns(breakdowns: Breakdowns) -> list[PageTable]:
    """Make a listing of the parts of each step."""
    if not breakdowns:
        return []
    names = list_parts(breakdowns)
    rows = [
        (title, *(f"{breakdown.get(name, 0.0):.1f}" for name in names), f"{sum(breakdown.values()):.1f}")
        for title, breakdown in breakdowns.items()
    ]
    return [PageTable("time breakdown, ms a step", ("", *names, "total"), rows)]
