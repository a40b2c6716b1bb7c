"""A page: sections of pictures, charts and rows first, tables folded below them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from fusionray.reporting.parts import VERDICTS, Part, gather_files, write_note, write_scroll
from fusionray.reporting.style import PAGE_STYLE
from fusionray.storage import filesystem as storage

PAGE_NAME = "report.html"
TEXT_NAME = "report.md"
TABLES_TITLE = "Tables"
NOTES_TITLE = "How this was made"
# Cells of so many characters are not broken into lines.
BRIEF_CELL = 24


@dataclass(frozen=True)
class Block:
    """A section of the page; its parts stand side by side where there is room, if `columns`."""

    title: str
    parts: Sequence[Part]
    note: str = ""
    columns: bool = False
    narrow: bool = False

    def write_html(self) -> str:
        style = "columns" if self.columns else "narrow" if self.narrow else ""
        parts = "".join(part.write_html() for part in self.parts)
        return (
            f'<section><h2>{escape(self.title)}</h2>{write_note(self.note)}<div class="{style}">{parts}</div></section>'
        )

    def write_markdown(self) -> Iterator[str]:
        yield f"## {self.title}"
        yield from filter(None, [self.note])
        for part in self.parts:
            yield from part.write_markdown()


@dataclass(frozen=True)
class Listing:
    """A table, folded until somebody opens it; cells are text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def write_html(self) -> str:
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in self.head)
        rows = "".join(f"<tr>{''.join(map(write_cell, self.head, row))}</tr>\n" for row in self.rows)
        table = write_scroll(self.title, f"<table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>")
        count = f"<small>{len(self.rows)} row{'s' * (len(self.rows) != 1)}</small>"
        return (
            f"<details><summary>{escape(self.title.capitalize())} {count}</summary>"
            f"{write_note(self.note)}{table}</details>"
        )

    def write_markdown(self) -> Iterator[str]:
        yield f"## {self.title.capitalize()}"
        yield from filter(None, [self.note])
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        yield "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclass(frozen=True)
class Page:
    """What a page tells, in this order: the lead, sections, then folded: tables, and notes on how it came about."""

    title: str
    blocks: Sequence[Block] = ()
    listings: Sequence[Listing] = ()
    lead: str = ""
    origin: str = ""
    notes: Sequence[str] = field(default=())
    command: str = ""

    def write_html(self) -> str:
        """Write the page as one file that needs nothing beside it."""
        body = [
            f"<h1>{escape(self.title)}</h1>",
            f'<p class="lead">{escape(self.lead)}</p>' if self.lead else "",
            write_note(self.origin),
            *(block.write_html() for block in self.blocks),
            f"<section><h2>{TABLES_TITLE}</h2>",
            *(listing.write_html() for listing in self.listings),
            self.write_notes(),
            "</section>",
        ]
        lines = "\n".join(filter(None, body))
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{PAGE_STYLE}</style></head>\n"
            f"<body><main>{lines}</main></body></html>\n"
        )

    def write_notes(self) -> str:
        if not self.notes and not self.command:
            return ""
        notes = "".join(map(write_note, self.notes))
        command = f"<pre>{escape(self.command)}</pre>" if self.command else ""
        return f"<details><summary>{NOTES_TITLE}</summary>{notes}{command}</details>"

    def write_markdown(self) -> str:
        """Write the same as Markdown; the pictures lie beside it."""
        blocks = [f"# {self.title}", *filter(None, [self.lead, self.origin])]
        for block in self.blocks:
            blocks += block.write_markdown()
        for listing in self.listings:
            blocks += listing.write_markdown()
        if self.notes or self.command:
            blocks += [f"## {NOTES_TITLE}", *self.notes]
        if self.command:
            blocks.append(f"```\n{self.command}\n```")
        return "\n\n".join(blocks) + "\n"


def save_page(folder: Path, page: Page) -> list[str]:
    """Write `report.html`, `report.md` and what the latter refers to into a folder; return their names."""
    files = {
        **gather_files(part for block in page.blocks for part in block.parts),
        TEXT_NAME: page.write_markdown().encode(),
        PAGE_NAME: page.write_html().encode(),
    }
    for name, content in files.items():
        storage.write_atomic(str(folder / name), content)
    return list(files)


def write_cell(column: str, cell: str) -> str:
    """Write a cell of a table; brief ones stay in one line."""
    if column == "holds" and cell in {"yes", "NO"}:
        return f'<td class="brief">{VERDICTS[cell == "yes"]}</td>'
    style = "value" if column == "value" else "brief" if len(cell) <= BRIEF_CELL else ""
    return f'<td class="{style}">{escape(cell)}</td>'
