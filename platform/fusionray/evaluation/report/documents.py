"""The report page: images, then figures and their goals as a chart, then all figures as folded tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fusionray.evaluation.metric_table import MetricTable
from fusionray.reporting.charts import MeasuredInterval, choose_strip_ends, draw_interval, explain_marks
from fusionray.reporting.figures import Figures, MeasuredFigure
from fusionray.reporting.page import Page, PageSection, PageTable, save_page
from fusionray.reporting.parts import Legend, PartGroup, StripRow, StripRows

# Theme of figures that are not in the metric table.
OTHER_THEME = "run"
OTHER_SENTENCE = "Properties of the run itself."
# Values in these units cannot exceed 1: the axis of their rows ends at 1.
UNITS_UP_TO_ONE = ("share", "SSIM", "area", "cosine")
FIGURE_HEAD = ("key", "value", "95 % interval", "goal", "holds")


@dataclass(frozen=True)
class Report:
    """The content of a page, in this order: `blocks` of images, figures and goals, `later` blocks of images; then
    folded: figures by theme, what could not be measured, listings, notes and the command.
    """

    title: str
    figures: Figures
    table: MetricTable
    notes: Sequence[str] = ()
    command: str = ""
    listings: Sequence[PageTable] = ()
    blocks: Sequence[PageSection] = field(default=())
    later: Sequence[PageSection] = field(default=())


def write_report(folder: str | Path, report: Report) -> list[str]:
    """Write `report.html`, `report.md` and the images of `report.md` into a folder or URI; return the file names."""
    return save_page(folder, compose(report))


def compose(report: Report) -> Page:
    """Build the page of a report."""
    figures = report.figures
    return Page(
        report.title,
        sections=(*report.blocks, *show_figures(report), *report.later),
        tables=(*list_figures(report), *list_missing(figures), *report.listings),
        lead=count_goals(figures),
        origin=f"{figures.machine}; fusionray {figures.code_version}. The faces of this report are AI-generated.",
        notes=report.notes,
        command=report.command,
    )


def count_goals(figures: Figures) -> str:
    """Say in a sentence how many goals hold, and which do not; empty if there are no goals."""
    missed = [key for key, figure in figures.figures.items() if figure.holds is False]
    number = sum(figure.holds is not None for figure in figures.figures.values())
    if not number:
        return ""
    held = f"{number - len(missed)} of {number} goals hold"
    return f"{held}; missed: {', '.join(missed)}." if missed else f"{held}."


def show_figures(report: Report) -> list[PageSection]:
    """Show the figures that have a goal; if none has one, the figures for which the table has a goal."""
    figures, table = report.figures.figures, report.table
    shown = {key: figure for key, figure in figures.items() if figure.goal is not None}
    title = "Figures and goals"
    if not shown:
        known = [key for key, row in table.metrics.items() if row.paired or row.unpaired]
        shown = {key: figure for key, figure in figures.items() if key in known}
        title = "Main figures"
    if not shown:
        return []
    themes = by_theme(shown, table)
    groups = [
        PartGroup(theme.capitalize(), [StripRows([show_figure(key, report) for key in themes[theme]])])
        for theme in themes
    ]
    with_goals = any(figure.goal for figure in shown.values())
    interval = "95 % interval" if any(figure.low is not None for figure in shown.values()) else ""
    legend = Legend(explain_marks(interval, with_goals=with_goals, with_open=not with_goals))
    return [PageSection(title, [legend, *groups])]


def show_figure(key: str, report: Report) -> StripRow:
    """Show a figure as a row."""
    figure = report.figures.figures[key]
    _, value, interval, goal, _ = figure_cells(key, figure)
    measured = MeasuredInterval(figure.value, figure.low, figure.high, figure.goal_low, figure.goal_high, figure.holds)
    ends = choose_strip_ends(measured, 1.0 if figure.unit in UNITS_UP_TO_ONE else None)
    details = [f"95 % interval {interval}"] if interval else []
    details += [f"goal {goal}"] if goal else []
    return StripRow(
        key,
        draw_interval(measured, ends, title=", ".join([f"{key} {value}", *details])),
        value,
        report.table.metrics[key].description if key in report.table.metrics else "",
        details,
        (f"{ends[0]:g}", f"{ends[1]:g}"),
        figure.holds,
    )


def figure_cells(key: str, figure: MeasuredFigure) -> tuple[str, str, str, str, str]:
    """Format a figure as one cell for each column of FIGURE_HEAD."""
    interval = "" if figure.low is None or figure.high is None else f"{figure.low:.4g} .. {figure.high:.4g}"
    holds = {True: "yes", False: "NO", None: ""}[figure.holds]
    return key, f"{figure.value:.4g} {figure.unit}", interval, figure.goal or "", holds


def write_text(figures: Figures) -> str:
    """Format the figures as a table for a terminal."""
    rows = [FIGURE_HEAD, *(figure_cells(key, figure) for key, figure in figures.figures.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(FIGURE_HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def by_theme(figures: Mapping[str, MeasuredFigure], table: MetricTable) -> dict[str, list[str]]:
    """PartGroup keys by theme, in the order of the table; keys that are not in the table come last."""
    themes: dict[str, list[str]] = {theme: [] for theme in (*table.themes, OTHER_THEME)}
    for key in figures:
        themes[table.metrics[key].theme if key in table.metrics else OTHER_THEME].append(key)
    return {theme: keys for theme, keys in themes.items() if keys}


def list_figures(report: Report) -> list[PageTable]:
    """Return a listing for each theme."""
    table, figures = report.table, report.figures.figures
    return [
        PageTable(
            theme,
            (*FIGURE_HEAD, "description"),
            [
                (*figure_cells(key, figures[key]), table.metrics[key].description if key in table.metrics else "")
                for key in keys
            ],
            table.themes.get(theme, OTHER_SENTENCE),
        )
        for theme, keys in by_theme(figures, table).items()
    ]


def list_missing(figures: Figures) -> list[PageTable]:
    """Return a listing of the figures that could not be measured, if there are any."""
    rows = list(figures.not_measured.items())
    return [PageTable("not measured", ("key", "why"), rows)] if rows else []
