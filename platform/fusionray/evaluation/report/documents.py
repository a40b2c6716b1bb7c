"""The report of a run: figures, tables and pictures as one HTML page that needs nothing beside it, and as Markdown."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fusionray.evaluation.report.figures import Figure, Figures
from fusionray.evaluation.report.goals import Table
from fusionray.storage import filesystem as storage

PAGE_NAME = "report.html"
TEXT_NAME = "report.md"
# What is said of figures that the table of keys does not know.
OTHER_THEME = "run"
OTHER_SENTENCE = "What the run itself was like."

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem; text-align: left; border-bottom: 1px solid #ddd; }
td.value { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
img { max-width: 100%; } .yes { color: #17692b; } .NO { color: #a11; } .note { color: #555; font-size: .9rem; }
pre { background: #f5f5f5; padding: .6rem; white-space: pre-wrap; overflow-wrap: anywhere; }
"""


@dataclass(frozen=True)
class Picture:
    """A PNG of the report, which is also written as `name`.png: its title and what it shows."""

    name: str
    title: str
    caption: str
    png: bytes


@dataclass(frozen=True)
class Listing:
    """A table of the report beside that of the figures; cells are text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Report:
    """What a page tells, in this order: notes, figures by theme, what could not be measured, listings, pictures."""

    title: str
    figures: Figures
    table: Table
    notes: Sequence[str] = ()
    command: str = ""
    listings: Sequence[Listing] = ()
    pictures: Sequence[Picture] = field(default=())


def write_report(folder: Path, report: Report) -> None:
    """Write `report.html`, `report.md` and the pictures into a folder."""
    for picture in report.pictures:
        storage.write_atomic(str(folder / f"{picture.name}.png"), picture.png)
    storage.write_atomic(str(folder / TEXT_NAME), write_markdown(report).encode())
    storage.write_atomic(str(folder / PAGE_NAME), write_page(report).encode())


FIGURE_HEAD = ("key", "value", "95 % interval", "goal", "holds")


def figure_cells(key: str, figure: Figure) -> tuple[str, str, str, str, str]:
    """Put a figure into words, under FIGURE_HEAD."""
    interval = "" if figure.low is None or figure.high is None else f"{figure.low:.4g} .. {figure.high:.4g}"
    verdict = {True: "yes", False: "NO", None: ""}[figure.holds]
    return key, f"{figure.value:.4g} {figure.unit}", interval, figure.goal or "", verdict


def write_text(figures: Figures) -> str:
    """Lay the figures out in columns, for a terminal."""
    rows = [FIGURE_HEAD, *(figure_cells(key, figure) for key, figure in figures.figures.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(FIGURE_HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def by_theme(figures: Mapping[str, Figure], table: Table) -> dict[str, list[str]]:
    """Sort keys by theme, in the order of the table; what it does not know comes last."""
    themes: dict[str, list[str]] = {theme: [] for theme in (*table.themes, OTHER_THEME)}
    for key in figures:
        themes[table.keys[key].theme if key in table.keys else OTHER_THEME].append(key)
    return {theme: keys for theme, keys in themes.items() if keys}


def list_figures(report: Report) -> list[Listing]:
    """Make a listing of each theme."""
    table, figures = report.table, report.figures.figures
    return [
        Listing(
            theme,
            (*FIGURE_HEAD, "what"),
            [(*figure_cells(key, figures[key]), table.keys[key].what if key in table.keys else "") for key in keys],
            table.themes.get(theme, OTHER_SENTENCE),
        )
        for theme, keys in by_theme(figures, table).items()
    ]


def list_missing(figures: Figures) -> list[Listing]:
    """Make a listing of what could not be measured, if there is anything."""
    rows = list(figures.not_measured.items())
    return [Listing("not measured", ("key", "why"), rows)] if rows else []


def write_page(report: Report) -> str:
    """Write the HTML page."""
    figures = report.figures
    origin = f"{figures.machine}; fusionray {figures.code_version}. The faces of this report are AI-generated."
    page = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{html.escape(report.title)}</title>",
        f"<style>{STYLE}</style><h1>{html.escape(report.title)}</h1>",
        *(f"<p class='note'>{html.escape(note)}</p>" for note in (origin, *report.notes)),
        *([f"<pre>{html.escape(report.command)}</pre>"] if report.command else []),
        *(page_listing(listing) for listing in (*list_figures(report), *list_missing(figures), *report.listings)),
        *(page_picture(picture) for picture in report.pictures),
        "</html>",
    ]
    return "\n".join(page)


def page_listing(listing: Listing) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in listing.head)
    rows = "".join(f"<tr>{''.join(map(page_cell, listing.head, row))}</tr>\n" for row in listing.rows)
    note = f"<p class='note'>{html.escape(listing.note)}</p>" if listing.note else ""
    return f"<h2>{html.escape(listing.title.capitalize())}</h2>{note}<table><tr>{head}</tr>\n{rows}</table>"


def page_cell(column: str, cell: str) -> str:
    kind = {"value": "value", "holds": cell}.get(column, "")
    return f"<td class='{html.escape(kind)}'>{html.escape(cell)}</td>"


def page_picture(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode()
    return (
        f"<h2>{html.escape(picture.title)}</h2><img alt='{html.escape(picture.title)}' "
        f"src='data:image/png;base64,{data}'><p class='note'>{html.escape(picture.caption)}</p>"
    )


def write_markdown(report: Report) -> str:
    """Write the same as Markdown; the pictures lie beside it."""
    figures = report.figures
    lines = [f"# {report.title}", "", f"{figures.machine}; fusionray {figures.code_version}.", ""]
    lines += [line for note in report.notes for line in (note, "")]
    if report.command:
        lines += ["```", report.command, "```", ""]
    for listing in (*list_figures(report), *list_missing(figures), *report.listings):
        lines += [f"## {listing.title.capitalize()}", "", *([listing.note, ""] if listing.note else [])]
        lines += [f"| {' | '.join(listing.head)} |", "|" + "---|" * len(listing.head)]
        lines += [f"| {' | '.join(row)} |" for row in listing.rows]
        lines.append("")
    for picture in report.pictures:
        lines += [f"## {picture.title}", "", f"![{picture.title}]({picture.name}.png)", "", picture.caption, ""]
    return "\n".join(lines)
