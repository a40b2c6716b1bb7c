"""The Python blocks of a page of the documentation, cut out and run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.support.child_python import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_LINE = re.compile(r"# (\w+\.py)\n")


def read_sections(page: str) -> dict[str, list[str]]:
    """Read the blocks under each heading of the second level; the text before the first one counts as ""."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    headings = ["", *parts[1::2]]
    return {heading: BLOCK.findall(body) for heading, body in zip(headings, parts[::2], strict=True)}


def run_blocks(blocks: list[str], folder: Path, names: dict[str, Any]) -> None:
    """Run blocks in their order with common names; a block that begins with the name of a file becomes that file."""
    for number, block in enumerate(blocks):
        named = FILE_LINE.match(block)
        if named:
            (folder / named.group(1)).write_text(block, encoding="utf-8")
        else:
            exec(compile(block, f"block {number + 1}", "exec", dont_inherit=True), names)
