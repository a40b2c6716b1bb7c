"""What a section of a page holds: pictures, charts, rows of strips.

Every part writes itself as HTML and as Markdown, and gives the files that its Markdown refers to.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

from fusionray.reporting.style import CHART_STYLE

VERDICTS = {True: '<span class="holds">✓ holds</span>', False: '<span class="misses">✗ misses</span>', None: ""}


class Part(Protocol):
    """Something that a section holds."""

    def write_html(self) -> str:
        """Write it as HTML."""
        ...

    def write_markdown(self) -> Iterator[str]:
        """Write it as blocks of Markdown."""
        ...

    def list_files(self) -> Mapping[str, bytes]:
        """Give the files, by name, that its Markdown refers to."""
        ...


@dataclass(frozen=True)
class Picture:
    """A PNG, in Markdown `name`.png; `heads` name its columns, which are equally wide."""

    name: str
    alt: str
    png: bytes
    caption: str = ""
    heads: Sequence[str] = ()

    def write_html(self) -> str:
        data = base64.b64encode(self.png).decode()
        heads = "".join(map(write_span, self.heads))
        above = f'<div class="heads">{heads}</div>' if heads else ""
        return (
            f"<figure>{above}"
            f'<img alt="{escape(self.alt)}" src="data:image/png;base64,{data}">{write_caption(self.caption)}</figure>'
        )

    def write_markdown(self) -> Iterator[str]:
        yield f"![{self.alt}]({self.name}.png)"
        yield from filter(None, [" | ".join(self.heads), self.caption])

    def list_files(self) -> Mapping[str, bytes]:
        return {f"{self.name}.png": self.png}


@dataclass(frozen=True)
class Chart:
    """A drawing of charts.py, in Markdown `name`.svg; one that needs so many pixels scrolls where there are fewer."""

    name: str
    title: str
    svg: str
    caption: str = ""
    least_pixels: int = 0

    def write_html(self) -> str:
        drawing = self.svg
        if self.least_pixels:
            width = f"min-width:{self.least_pixels}px;max-width:{1.4 * self.least_pixels:.0f}px"
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
class Row:
    """A strip of charts.py between what it is of and what it says; `ends` stand below the ends of the strip."""

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
            f"<div><b>{escape(self.value)}</b> {VERDICTS[self.holds]}{details}</div></li>"
        )

    def write_line(self) -> str:
        verdict = {True: "holds", False: "misses", None: ""}[self.holds]
        return f"- {self.label}: {', '.join(filter(None, [self.value, *self.details, verdict]))}"


@dataclass(frozen=True)
class Rows:
    """Rows one below the other."""

    rows: Sequence[Row]

    def write_html(self) -> str:
        return f'<ul class="rows">{"".join(row.write_html() for row in self.rows)}</ul>'

    def write_markdown(self) -> Iterator[str]:
        yield "\n".join(row.write_line() for row in self.rows)

    def list_files(self) -> Mapping[str, bytes]:
        return {}


@dataclass(frozen=True)
class Legend:
    """What marks and colours mean: samples of charts.py and words. Markdown shows no marks and so explains none."""

    entries: Sequence[tuple[str, str]]

    def write_html(self) -> str:
        entries = "".join(f"<li>{sample} {escape(words)}</li>" for sample, words in self.entries)
        return f'<ul class="key note">{entries}</ul>'

    def write_markdown(self) -> Iterator[str]:
        yield from ()

    def list_files(self) -> Mapping[str, bytes]:
        return {}


@dataclass(frozen=True)
class Group:
    """Parts below a title of their own."""

    title: str
    parts: Sequence[Part]
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


def gather_files(parts: Iterable[Part]) -> dict[str, bytes]:
    """Gather the files of several parts."""
    return {name: content for part in parts for name, content in part.list_files().items()}


def write_note(words: str) -> str:
    return f'<p class="note">{escape(words)}</p>' if words else ""


def write_caption(words: str) -> str:
    return f"<figcaption>{escape(words)}</figcaption>" if words else ""


def write_span(words: str) -> str:
    return f"<span>{escape(words)}</span>"


def write_scroll(title: str, content: str) -> str:
    """Let wide content scroll within itself, by keys as well."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">{content}</div>'
