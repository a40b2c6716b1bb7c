"""The page of a benchmark: each figure with its goal, the time breakdown of a step, and the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from fusionray.benchmarks.findings import HEAD, BenchKey, Findings, describe_spread, list_rows
from fusionray.reporting.charts import (
    STRIP_HEIGHT,
    MeasuredInterval,
    choose_strip_ends,
    draw_interval,
    draw_sample,
    draw_stack,
    explain_marks,
    open_svg,
)
from fusionray.reporting.figures import Figures, MeasuredFigure
from fusionray.reporting.page import Page, PageSection, PageTable
from fusionray.reporting.parts import Legend, PartGroup, StripRow, StripRows

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


KINDS = {
    "system": "What users get",
    "algorithm": "What does not depend on the speed of the machine",
    "hardware": "What the machine can do",
}


def show_figures(figures: Figures, findings: Findings, keys: Mapping[str, BenchKey]) -> list[PageSection]:
    """Show each figure as a row: the median over the rounds, on the interval from the lowest round to the highest."""
    groups = []
    for kind, title in KINDS.items():
        rows = [
            show_figure(key, figure, findings.values.get(key, ()), keys[key].what)
            for key, figure in figures.figures.items()
            if keys[key].kind == kind
        ]
        groups += [PartGroup(title, [StripRows(rows)])] if rows else []
    legend = Legend(explain_marks("from the lowest round to the highest", with_goals=True, with_open=True))
    return [PageSection("Figures and goals", [legend, *groups])] if groups else []


LABEL_WIDTH, STRIP_WIDTH, VALUE_WIDTH, ROW_HEIGHT = 300, 320, 300, 34


def draw_sheet(title: str, figures: Figures, findings: Findings) -> str:
    """Draw all figures on one sheet: key, strip, value and goal, and the machine below."""
    rows = list(figures.figures.items())
    width, height = LABEL_WIDTH + STRIP_WIDTH + VALUE_WIDTH, ROW_HEIGHT * (len(rows) + 2)
    drawn = [open_svg(width, height, title), f'<text class="name" x="12" y="22">{escape(title)}</text>']
    for number, (key, figure) in enumerate(rows, start=1):
        top = ROW_HEIGHT * number
        rounds = findings.values.get(key, ())
        measured = measure_interval(figure, rounds)
        strip = draw_interval(measured, choose_strip_ends(measured), title=key)
        drawn.append(f'<text x="12" y="{top + 16}">{escape(key)}</text>')
        drawn.append(f'<svg x="{LABEL_WIDTH}" y="{top}" width="{STRIP_WIDTH}" height="{STRIP_HEIGHT}">{strip}</svg>')
        value = f"{figure.value:.3g} {figure.unit}" + (f", goal {figure.goal}" if figure.goal else "")
        drawn.append(f'<text x="{LABEL_WIDTH + STRIP_WIDTH + 16}" y="{top + 16}">{escape(value)}</text>')
    below = f"{figures.machine}; fusionray {figures.code_version}"
    drawn.append(f'<text class="tick" x="12" y="{height - 10}">{escape(below)}</text>')
    return "".join([*drawn, "</svg>"])


def measure_interval(figure: MeasuredFigure, rounds: Sequence[float]) -> MeasuredInterval:
    """Put a figure on the interval from the lowest round to the highest."""
    low, high = (min(rounds), max(rounds)) if len(rounds) > 1 else (None, None)
    return MeasuredInterval(figure.value, low, high, figure.goal_low, figure.goal_high, figure.holds)


def show_figure(key: str, figure: MeasuredFigure, rounds: Sequence[float], what: str) -> StripRow:
    """Show a figure as a row."""
    measured = measure_interval(figure, rounds)
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
