"""The drawing of the architecture holds: each room imports only from rows below it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from tests.support.child_python import ROOT

PACKAGE = ROOT / "platform" / "fusionray"
LABEL = re.compile(r'<g class="room"><rect [^>]*y="(\d+)"[^>]*/><text [^>]*>([^<]*)</text>')
# Small modules that only the base row uses, or that hold the version: the drawing leaves them out.
NOT_DRAWN = {"__init__", "background", "config_faults", "config_keys", "config_presets", "spelling"}


def read_rows() -> dict[str, int]:
    """Read the row of each room of the package from the drawing: the larger, the lower."""
    drawing = (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")
    labels = [(int(top), label) for top, label in LABEL.findall(drawing)]
    assert len(labels) > 15
    named = [(name.strip(" /"), top) for top, label in labels for name in label.split(",")]
    return {name: top for name, top in named if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def read_edges() -> dict[str, set[str]]:
    """Find which rooms each room imports."""
    edges: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fusionray":
                parts = (node.module or "").split(".")
                used = {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
                edges[room_of(path)] |= used - {room_of(path)}
    return edges


def test_every_room_is_drawn() -> None:
    rooms = {room_of(path) for path in PACKAGE.rglob("*.py")} - NOT_DRAWN
    assert rooms == set(read_rows())


def test_rooms_import_only_from_rows_below() -> None:
    rows = read_rows()
    # Rooms in one box, and the modules of the last row, may know each other.
    boxes = [{"cli", "commands"}, {"bundle", "tracking"}, {"config", "errors", "environment", "types"}]
    faults = [
        f"{room} imports {used}"
        for room, names in read_edges().items()
        for used in names
        if room in rows and used in rows and rows[used] <= rows[room] and not any({room, used} <= box for box in boxes)
    ]
    assert faults == []
