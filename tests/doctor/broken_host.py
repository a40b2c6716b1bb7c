"""A machine with faults that a test makes: its files, its variables, and what its tools print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fusionray.doctor.finding import Finding
from fusionray.doctor.host import Host


@dataclass(eq=False)
class BrokenHost(Host):
    """A machine whose limits and names are those of the test."""

    files: int = 65_536
    disk: tuple[int, int] = (100 * 2**30, 50 * 2**30)
    address: str | None = "10.0.0.7"
    locked: int = -1
    cpu_counts: tuple[int, int] = (16, 16)

    def cpus(self) -> tuple[int, int]:
        return self.cpu_counts

    def is_here(self, name: str) -> bool:
        return name in ("127.0.0.1", self.address)

    def locked_memory(self) -> int:
        return self.locked

    def open_files(self) -> int:
        return self.files

    def space(self, path: str) -> tuple[int, int]:
        return self.disk

    def resolve(self) -> tuple[str, str | None]:
        return "worker", self.address


def build(root: Path, files: Mapping[str, str] | None = None, **variables: str) -> BrokenHost:
    for path, text in (files or {}).items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return BrokenHost(root=root, environment=variables)


def seen(findings: Iterable[Finding]) -> list[tuple[str, str, str]]:
    return [(found.name, found.severity, found.action) for found in findings]


def record_tools(root: Path, answers: Mapping[str, str]) -> str:
    """Make tools that print what was recorded, by their command line (`*`: whatever follows); return their folder.

    With other arguments they fail, as nvidia-smi does for what it does not know.
    """
    folder = root / "tools"
    folder.mkdir(exist_ok=True)
    names = {command.partition(" ")[0] for command in answers}
    for name in names:
        cases = []
        for number, (command, text) in enumerate(answers.items()):
            tool, _, arguments = command.partition(" ")
            if tool == name:
                (folder / f"{name}.{number}.txt").write_text(text)
                pattern = arguments.replace(" ", "' '") or "''"
                cases.append(f"{pattern}) file={folder}/{name}.{number}.txt ;;")
        lines = ["#!/bin/sh", 'case "$*" in', *cases, "*) exit 1 ;;", "esac"]
        # No other command is on the PATH of the test.
        lines += ['while IFS= read -r line; do printf "%s\\n" "$line"; done < "$file"']
        (folder / name).write_text("\n".join([*lines, ""]))
        (folder / name).chmod(0o755)
    return str(folder)
