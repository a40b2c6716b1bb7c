"""What every report's page keeps to, read off its HTML."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

# Elements that HTML never closes.
EMPTY = {"meta", "img"}


@dataclass
class PageShape(HTMLParser):
    """The elements in order, the words that are read out in place of drawings, and the text."""

    order: list[str] = field(default_factory=list)
    open_now: list[str] = field(default_factory=list)
    pictures: list[dict[str, str | None]] = field(default_factory=list)
    read_out: list[str] = field(default_factory=list)
    text: str = ""
    loose_tables: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.order.append(tag)
        if tag == "img":
            self.pictures.append(found)
            self.read_out.append(found.get("alt") or "")
        if tag == "svg" and "svg" not in self.open_now:
            assert found.get("role") == "img" or found.get("aria-hidden") == "true", attrs
            self.read_out += [found.get("aria-label") or ""] if found.get("role") == "img" else []
        if tag == "table" and "details" not in self.open_now:
            self.loose_tables += 1
        if tag not in EMPTY:
            self.open_now.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.order.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open_now, tag
        assert self.open_now.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def words_of(self, words: str) -> bool:
        """Tell whether a drawing is read out so."""
        return any(words in each for each in self.read_out)


def check_page(page: str) -> PageShape:
    """Check a page: pictures before tables, all with words, all in the file; tables folded; no script."""
    shape = PageShape()
    shape.feed(page)
    assert shape.open_now == []
    assert shape.loose_tables == 0, "a table is not folded"
    assert all(shape.read_out), "a picture or drawing has no words"
    assert [found["src"] for found in shape.pictures if not str(found["src"]).startswith("data:image/")] == []
    assert "http" not in page
    assert not {"script", "link", "iframe"} & set(shape.order)
    if "table" in shape.order:
        last = max((place for place, tag in enumerate(shape.order) if tag in {"img", "svg"}), default=-1)
        assert last < shape.order.index("table"), "a picture stands behind a table"
    return shape
