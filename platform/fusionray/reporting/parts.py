"""The parts of a page section: pictures, charts, rows with strips, legends, groups.

Every part writes itself as HTML and as Markdown, and lists the files that its Markdown refers to.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

from fusionray.reporting.style import CHART_STYLE

GOAL_STATUS_HTML = {True: '<span class="holds">✓ holds</span>', False: '<span class="misses">✗ misses</span>', None: ""}


class PagePart(Protocol):
    """A part of a page section."""

    def write_html(self) -> str:
        """Write it as HTML."""
        ...

    def write_markdown(self) -> Iterator[str]:
        """Write it as blocks of Markdown."""
        ...

    def list_files(self) -> Mapping[str, bytes]:
        """Return the content of the files that its Markdown refers to, by name."""
        ...


@dataclass(frozen=True)
class PageImage:
    """A PNG picture, in Markdown the file `name`.png. `column_names` label its columns, which have equal width."""

    name: str
    alt: str
    png: bytes
    caption: str = ""
    column_names: Sequence[str] = ()

    def write_html(self) -> str:
        data = base64.b64encode(self.png).decode()
        column_names = "".join(map(write_span, self.column_names))
        above = f'<div class="column_names">{column_names}</div>' if column_names else ""
        return (
            f"<figure>{above}"
            f'<img alt="{escape(self.alt)}" src="data:image/png;base64,{data}">{write_caption(self.caption)}</figure>'
        )

    def write_markdown(self) -> Iterator[str]:
        yield f"![{self.alt}]({self.name}.png)"
        yield from filter(None, [" | ".join(self.column_names), self.caption])

    def list_files(self) -> Mapping[str, bytes]:
        return {f"{self.name}.png": self.png}


@dataclass(frozen=True)
class Chart:
    """A drawing of charts.py, in Markdown the file `name`.svg. On screens under `min_pixels`, it scrolls."""

    name: str
    title: str
    svg: str
    caption: str = ""
    min_pixels: int = 0

    def write_html(self) -> str:
        drawing = self.svg
        if self.min_pixels:
            width = f"min-width:{self.min_pixels}px;max-width:{1.4 * self.min_pixels:.0f}px"
            drawing = drawing.replace("<svg ", f'<svg style="{width}" ', 1)
            drawing = write_scroll(self.title, drawing)
        return f"<figure><h3>{escape(self.title)}</h3>{drawing}{write_caption(self.caption)}</figure>"

    def write_markdown(self) -> Iterator[str]:
        yield f"![{self.title}]({self.name}.svg)"
        yield from filter(None, [self.caption])

    def list_files(self) -> Mapping[str, bytes]:
        head, rest = self.svg.removeprefix("<svg ").split(">", 1)
        whole = f'<svg xmlns="http://www.w3.org/2000/svg" {head}><style>{CHART_STYLE}</style>{rest}'
        return {f"{self.name}.svg": whole.encode()}


@dataclass(frozen=True)
class StripRow:
    """A strip of charts.py between a label and a value; `ends` are the texts below its left and right end."""

    label: str
    strip: str
    value: str
    note: str = ""
    details: Sequence[str] = ()
    ends: tuple[str, str] | None = None
    holds: bool | None = None

    def write_html(self) -> str:
        ends = "" if self.ends is None else f'<small class="ends">{"".join(map(write_span, self.ends))}</small>'
        details = "".join(f"<small>{escape(detail)}</small>" for detail in self.details)
        note = f"<small>{escape(self.note)}</small>" if self.note else ""
        return (
            f"<li><div><b>{escape(self.label)}</b>{note}</div><div>{self.strip}{ends}</div>"
            f"<div><b>{escape(self.value)}</b> {GOAL_STATUS_HTML[self.holds]}{details}</div></li>"
        )

    def write_line(self) -> str:
        status = {True: "holds", False: "misses", None: ""}[self.holds]
        return f"- {self.label}: {', '.join(filter(None, [self.value, *self.details, status]))}"


@dataclass(frozen=True)
class StripRows:
    """A list of rows with strips."""

    rows: Sequence[StripRow]

    def write_html(self) -> str:
        return f'<ul class="rows">{"".join(row.write_html() for row in self.rows)}</ul>'

    def write_markdown(self) -> Iterator[str]:
        yield "\n".join(row.write_line() for row in self.rows)

    def list_files(self) -> Mapping[str, bytes]:
        return {}


@dataclass(frozen=True)
class Legend:
    """A legend: samples of charts.py with their meaning. Markdown has no marks, so it omits the legend."""

    entries: Sequence[tuple[str, str]]

    def write_html(self) -> str:
        entries = "".join(f"<li>{sample} {escape(words)}</li>" for sample, words in self.entries)
        return f'<ul class="key note">{entries}</ul>'

    def write_markdown(self) -> Iterator[str]:
        yield from ()

    def list_files(self) -> Mapping[str, bytes]:
        return {}


@dataclass(frozen=True)
class PartGroup:
    """Parts under a common title."""

    title: str
    parts: Sequence[PagePart]
    note: str = ""

    def write_html(self) -> str:
        parts = "".join(part.write_html() for part in self.parts)
        return f'<div class="group"><h3>{escape(self.title)}</h3>{write_note(self.note)}{parts}</div>'

    def write_markdown(self) -> Iterator[str]:
        yield f"### {self.title}"
        yield from filter(None, [self.note])
        for part in self.parts:
            yield from part.write_markdown()

    def list_files(self) -> Mapping[str, bytes]:
        return gather_files(self.parts)


def gather_files(parts: Iterable[PagePart]) -> dict[str, bytes]:
    """Collect the files of several parts."""
    return {name: content for part in parts for name, content in part.list_files().items()}


def write_note(words: str) -> str:
    return f'<p class="note">{escape(words)}</p>' if words else ""


def write_caption(words: str) -> str:
    return f"<figcaption>{escape(words)}</figcaption>" if words else ""


def write_span(words: str) -> str:
    return f"<span>{escape(words)}</span>"


def write_scroll(title: str, content: str) -> str:
    """Put wide content into a box that scrolls, also by keyboard."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">{content}</div>'
