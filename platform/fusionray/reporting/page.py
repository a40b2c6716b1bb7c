"""A report page: sections with pictures, charts and rows, then folded tables. Written as HTML and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from fusionray.reporting.parts import GOAL_STATUS_HTML, PagePart, gather_files, write_note, write_scroll
from fusionray.reporting.style import PAGE_STYLE
from fusionray.storage import filesystem as storage

PAGE_NAME = "report.html"
TEXT_NAME = "report.md"
TABLES_TITLE = "Tables"
NOTES_TITLE = "How this was made"
# The longest cell that is not wrapped, in characters.
BRIEF_CELL = 24


@dataclass(frozen=True)
class PageSection:
    """A section of the page. `columns`: its parts are laid out side by side; `narrow`: it is 36 rem wide at most."""

    title: str
    parts: Sequence[PagePart]
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
class PageTable:
    """A table of text, folded until the reader opens it. `head` names its columns."""

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
    """A page, in this order: title, lead, origin, sections; then folded tables, and folded notes with the command."""

    title: str
    sections: Sequence[PageSection] = ()
    tables: Sequence[PageTable] = ()
    lead: str = ""
    origin: str = ""
    notes: Sequence[str] = field(default=())
    command: str = ""

    def write_html(self) -> str:
        """Write the page as one self-contained HTML document."""
        body = [
            f"<h1>{escape(self.title)}</h1>",
            f'<p class="lead">{escape(self.lead)}</p>' if self.lead else "",
            write_note(self.origin),
            *(section.write_html() for section in self.sections),
            f"<section><h2>{TABLES_TITLE}</h2>",
            *(table.write_html() for table in self.tables),
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
        """Write the page as Markdown, which refers to the pictures by file name."""
        blocks = [f"# {self.title}", *filter(None, [self.lead, self.origin])]
        for section in self.sections:
            blocks += section.write_markdown()
        for table in self.tables:
            blocks += table.write_markdown()
        if self.notes or self.command:
            blocks += [f"## {NOTES_TITLE}", *self.notes]
        if self.command:
            blocks.append(f"```\n{self.command}\n```")
        return "\n\n".join(blocks) + "\n"


def save_page(folder: str | Path, page: Page) -> list[str]:
    """Write `report.html`, `report.md` and the pictures of the latter into a folder or URI; return their names."""
    files = {
        **gather_files(part for section in page.sections for part in section.parts),
        TEXT_NAME: page.write_markdown().encode(),
        PAGE_NAME: page.write_html().encode(),
    }
    for name, content in files.items():
        storage.write_atomic(storage.join(str(folder), name), content)
    return list(files)


def write_cell(column: str, cell: str) -> str:
    """Write a cell of a table; a short one is not wrapped."""
    if column == "holds" and cell in {"yes", "NO"}:
        return f'<td class="brief">{GOAL_STATUS_HTML[cell == "yes"]}</td>'
    style = "value" if column == "value" else "brief" if len(cell) <= BRIEF_CELL else ""
    return f'<td class="{style}">{escape(cell)}</td>'
