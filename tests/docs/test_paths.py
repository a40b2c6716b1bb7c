"""What the README and the pages name exists: files in backticks, and the pages that links lead to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.child_python import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
PACKAGE = ROOT / "platform" / "fusionray"
# Modules are named from the root, or from the package as a reader of the code sees them.
ROOTS = (ROOT, PACKAGE, ROOT / "docs")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# A path alone, or the script of a command such as `python jobs/demo.py --x`; other pages are outputs of stages.
FILE = re.compile(r"(?<![\w./*-])(?:[\w./-]+\.py|docs/[\w-]+\.md)(?![\w*])")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def named_files(text: str) -> set[str]:
    """Find the names of modules and pages in the backticks of a page."""
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    return {name for span in spans for name in FILE.findall(span)}


def is_there(name: str) -> bool:
    return any((root / name).is_file() for root in ROOTS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_and_pages_that_are_named_exist(page: Path) -> None:
    names = named_files(page.read_text(encoding="utf-8"))
    assert sorted(name for name in names if not is_there(name)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    # The picture of the demo is drawn by `make demo`.
    links = set(LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))) - {"docs/demo-grid.png"}
    assert sorted(link for link in links if not (page.parent / link).is_file()) == []


def test_a_name_without_a_file_is_found() -> None:
    names = named_files("`recipes/family.py`, `python jobs/demo.py`, `gone.py`, `*.py`\n```\n`fenced.py`\n```\n")
    assert names == {"recipes/family.py", "jobs/demo.py", "gone.py"}
    assert [name for name in sorted(names) if not is_there(name)] == ["gone.py"]
