"""The chain of an audit log: each line holds the sha256 of the line before it, through rotations.

So a line that was changed, removed or put in shows.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fusionray.errors import ChainBroken, InputMissing

# What the first line of a log holds.
NO_LINE = "0" * 64
BLOCK_BYTES = 16_384


@dataclass(frozen=True)
class Chain:
    """A chain that holds: its lines, its files from the oldest on, and the hash of its last line.

    `is_whole`: it begins with the first line of the log; otherwise earlier files were rotated away.
    """

    num_lines: int
    files: tuple[Path, ...]
    last_hash: str
    is_whole: bool


def hash_line(line: bytes) -> str:
    """Return the sha256 of a line without its end, hexadecimal."""
    return hashlib.sha256(line).hexdigest()


def hash_last_line(*files: Path) -> str:
    """Return the hash of the last line of the first of these files that has one; `NO_LINE` if none has.

    Raises: OSError.
    """
    for file in files:
        if file.is_file() and (line := read_last_line(file)) is not None:
            return hash_line(line)
    return NO_LINE


def read_last_line(file: Path) -> bytes | None:
    """Read the last line of a file from its end; None if the file is empty."""
    with file.open("rb") as opened:
        position = opened.seek(0, os.SEEK_END)
        tail = b""
        while position > 0 and tail.count(b"\n", 0, -1) == 0:
            step = min(BLOCK_BYTES, position)
            position = opened.seek(position - step)
            tail = opened.read(step) + tail
    return tail.removesuffix(b"\n").rpartition(b"\n")[2] if tail else None


def check_chain(path: Path, last_hash: str | None = None) -> Chain:
    """Check the chain of a log and of its rotated files.

    `last_hash` is that of an earlier check, whose line must still be there: it alone shows that lines were cut off at
    the end.

    Raises: InputMissing if there is no log; ChainBroken naming the first file and line that do not follow.
    """
    files = list_files(path) if path.parent.is_dir() else []
    if not files:
        raise InputMissing(f"{path}: there is no audit log; give the path that `audit.path` names")
    num_lines, found = 0, last_hash is None
    first, expected = None, None
    for file, number, line in read_lines(files):
        previous = read_previous(line)
        if previous is None:
            raise ChainBroken(f"{file}, line {number}: it is not a line of an audit log; it was damaged or put in")
        if expected is not None and previous != expected:
            raise ChainBroken(
                f"{file}, line {number}: it does not follow the line before; one was changed, removed or put in"
            )
        first = previous if first is None else first
        expected = hash_line(line)
        found = found or expected == last_hash
        num_lines += 1
    if not found:
        raise ChainBroken(f"{path}: the line with the hash {last_hash} is gone; lines were cut off, or rotated away")
    return Chain(num_lines, tuple(files), expected or NO_LINE, first in (None, NO_LINE))


def list_files(path: Path) -> list[Path]:
    """List the files of a log, the oldest first."""
    pattern = re.compile(re.escape(path.name) + r"\.([0-9]+)")
    rotated = {
        int(found[1]): place for place in path.parent.glob(f"{path.name}.*") if (found := pattern.fullmatch(place.name))
    }
    return [*(rotated[number] for number in sorted(rotated, reverse=True)), *([path] if path.is_file() else [])]


def read_lines(files: list[Path]) -> Iterator[tuple[Path, int, bytes]]:
    """Read file, number and bytes of each line."""
    for file in files:
        with file.open("rb") as opened:
            for number, line in enumerate(opened, 1):
                yield file, number, line.removesuffix(b"\n")


def read_previous(line: bytes) -> str | None:
    """Return what a line holds as the hash of the line before it; None if it is no line of a log."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    previous = entry.get("previous") if isinstance(entry, dict) else None
    return previous if isinstance(previous, str) else None
