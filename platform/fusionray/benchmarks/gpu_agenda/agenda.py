"""Work through the items in order, each in a process of its own, until the time is over."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from fusionray.hardware.processes import find_processes
from fusionray.storage.atomic_files import replace_file

Status = Literal["done", "failed", "timed out"]
# An item that has less time than this would hardly get past its imports.
FEWEST_SECONDS = 20.0
# How long an item may take to end by SIGTERM: a training writes a checkpoint.
END_SECONDS = 30.0
MARK = "FUSIONRAY_AGENDA_ITEM"


@dataclass(frozen=True)
class Item:
    """One measurement: `function`, as `module:name`, is called in a new process with a Workplace and `arguments`.

    `seconds`: its time limit, or less where less time is left. `needs_gpu`: it has no meaning on a CPU.
    """

    name: str
    function: str
    seconds: float
    arguments: dict[str, Any] = field(default_factory=dict)
    needs_gpu: bool = True


@dataclass(frozen=True)
class Workplace:
    """Where an item works: the folder of the agenda, the device (`cuda` or `cpu`), and the seconds that it has."""

    folder: Path
    device: str
    seconds: float

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Measure the block while no other item of this folder measures: agendas of other items may run beside it."""
        with (self.folder / "measuring").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self, name: str) -> dict[str, Any]:
        """Return the values that an earlier item found.

        Raises: LookupError if it found none.
        """
        result = read_result(self.folder, name)
        if result is None or result.status != "done":
            raise LookupError(f"the item '{name}' has no result to compare with")
        return result.values


@dataclass(frozen=True)
class Result:
    """What became of an item: `values` that it returned, or the last lines that it printed."""

    status: Status
    seconds: float
    values: dict[str, Any]
    last_lines: str = ""


def run_agenda(
    items: Sequence[Item], folder: Path, device: str, seconds: float, tell: Callable[[str], None]
) -> dict[str, Result]:
    """Run the items that are not done yet; return all results so far. `tell` is called with a line for each item."""
    until = time.monotonic() + seconds
    for item in items:
        if item.needs_gpu and device != "cuda":
            tell(f"{item.name}: not measured, needs a GPU")
            continue
        if (known := read_result(folder, item.name)) is not None and known.status == "done":
            tell(f"{item.name}: done before")
            continue
        left = until - time.monotonic()
        if left < FEWEST_SECONDS:
            tell(f"{item.name}: not begun, no time is left")
            break
        result = run_item(item, Workplace(folder, device, min(item.seconds, left)))
        write_result(folder, item.name, result)
        tell(
            f"{item.name}: {result.status} in {result.seconds:.0f} s  {json.dumps(result.values or result.last_lines)}"
        )
    found = ((item.name, read_result(folder, item.name)) for item in items)
    return {name: result for name, result in found if result is not None}


def run_item(item: Item, place: Workplace) -> Result:
    """Run an item in a process; when its time is over, end it and all processes that it started."""
    folder = place.folder / "items" / item.name
    folder.mkdir(parents=True, exist_ok=True)
    answer = folder / "values.json"
    answer.unlink(missing_ok=True)
    mark = uuid.uuid4().hex
    order = json.dumps({**asdict(place), "folder": str(place.folder)})
    command = [
        sys.executable,
        "-m",
        f"{__package__}.child",
        item.function,
        json.dumps(item.arguments),
        order,
        str(answer),
    ]
    started = time.monotonic()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own command
            command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env={**os.environ, MARK: mark}
        )
        try:
            process.wait(place.seconds)
            status: Status = "done" if process.returncode == 0 and answer.exists() else "failed"
        except subprocess.TimeoutExpired:
            status = "timed out"
            process.send_signal(signal.SIGTERM)
        finally:
            end_processes(process, f"{MARK}={mark}")
    values = json.loads(answer.read_text()) if answer.exists() else {}
    last_lines = (folder / "log").read_text(errors="replace")[-2000:] if status != "done" else ""
    return Result(status, time.monotonic() - started, values, last_lines)


def end_processes(process: subprocess.Popen[bytes], variable: str) -> None:
    """Wait for a process that is ending, then kill it and what it has left, such as a Ray."""
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in find_processes(variable=variable):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def read_result(folder: Path, name: str) -> Result | None:
    """Read the result of an item; None if it has none."""
    file = folder / "items" / name / "result.json"
    return Result(**json.loads(file.read_text())) if file.exists() else None


def write_result(folder: Path, name: str, result: Result) -> None:
    """Write the result of an item, whole or not at all."""
    replace_file(folder / "items" / name / "result.json", json.dumps(asdict(result), indent=1).encode())
