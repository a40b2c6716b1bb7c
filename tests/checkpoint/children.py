"""What processes that are killed or starved do with checkpoints; run in children of the tests, so it lies apart.

One process imports torch and starts no thread; all others are forked from it, so that many can be started and killed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor

from fusionray.checkpoint.info import checkpoint_name, newest_checkpoint
from fusionray.checkpoint.reader import load_tensors
from fusionray.checkpoint.writer import CheckpointWriter
from fusionray.errors import CheckpointFailed
from fusionray.storage import atomic_files
from fusionray.storage import filesystem as storage
from tests.checkpoint.states import describe
from tests.support.full_disk import full_disk

NUM_KILLS = 24
NOBODY = 65534
# The functions of the storage modules that change files.
STORAGE_FILES = (storage.__file__, atomic_files.__file__)
CHANGING = ("open_output", "write_atomic", "replace_file", "create_file", "sync_folder", "delete")


def run_template(tasks: Sequence[Callable[[Path], Any]], folder: Path) -> dict[str, Any]:
    """Run tasks in a process that can be forked, each in a folder of its name; return what each of them returned."""
    mp.spawn(keep_results, args=(tasks, folder), nprocs=1)  # type: ignore[attr-defined, no-untyped-call]
    results: dict[str, Any] = torch.load(folder / "results.pt", weights_only=True)
    return results


def keep_results(_: int, tasks: Sequence[Callable[[Path], Any]], folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    results = {}
    for task in tasks:
        place = folder / task.__name__
        place.mkdir()
        results[task.__name__] = task(place)
    torch.save(results, folder / "results.pt")


def fork(work: Callable[[], None]) -> int:
    """Fork a child that does some work and ends; returns its process id."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)


def steady_state(number: int) -> dict[str, Tensor]:
    """Build a state whose every value is one number, so that a mixture of two saves would show; 0.25 MB."""
    return {f"t{index}": torch.full((64, 64), float(number)) for index in range(16)}


def save(run: Path, number: int, *, keep: int = 2) -> None:
    writer = CheckpointWriter(str(run), keep=keep)
    writer.begin(steady_state(number), describe(number))
    writer.close()


def number_in_newest(run: Path) -> int:
    """Load the newest checkpoint whole and return the number that all of its values are."""
    newest = newest_checkpoint(str(run))
    if newest is None:
        return 0
    state = load_tensors(newest)
    assert len(state) == 16
    (number,) = {float(value) for tensor in state.values() for value in (tensor.min(), tensor.max())}
    assert newest.endswith(checkpoint_name(int(number)))
    return int(number)


def kill_at_random_moments(run: Path) -> dict[str, Any]:
    """Kill savers that save on and on; note what was loaded after each, and what had been promised before."""
    seen, promised = [], []
    moments = random.Random(0)
    started = time.monotonic()
    save(run, 1)
    seconds = time.monotonic() - started
    for _ in range(NUM_KILLS):
        reader, writer = os.pipe()
        first = number_in_newest(run) + 1
        child = fork(lambda first=first, writer=writer: save_on(run, first, writer))  # type: ignore[misc]
        os.close(writer)
        os.read(reader, 1)
        time.sleep(moments.uniform(0, 4 * seconds))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        promised.append(first - 1 + len(os.read(reader, 1 << 16)))
        os.close(reader)
        seen.append(number_in_newest(run))
    save(run, seen[-1] + 1)
    return {"seen": seen, "promised": promised, "left": left_in(run)}


def save_on(run: Path, number: int, promises: int) -> None:
    """Save larger and larger numbers; say a byte when it begins, and one after each checkpoint that is finished."""
    writer = CheckpointWriter(str(run), keep=2)
    os.write(promises, b".")
    while True:
        writer.begin(steady_state(number), describe(number))
        writer.wait()
        os.write(promises, b".")
        number += 1


def kill_at_every_step_of_storage(folder: Path) -> dict[str, Any]:
    """Kill a saver as the n-th call in what changes files, or out of it, returns; for every n that one save has."""
    run, seen, recovered = folder / "run", [], 0
    for number in (1, 2):
        save(folder / "before", number)
    step, killed = 0, True
    while killed:
        shutil.copytree(folder / "before", run)
        child = fork(lambda step=step: save_until(run, step))  # type: ignore[misc]
        killed = os.waitpid(child, 0)[1] == signal.SIGKILL
        seen.append(number_in_newest(run))
        if killed and step % 8 == 0:
            save(run, 4)
            assert number_in_newest(run) == 4
            assert len(left_in(run)) == 2 * 4, left_in(run)
            recovered += 1
        shutil.rmtree(run)
        step += 1
    return {"seen": seen, "recovered": recovered}


def save_until(run: Path, step: int) -> None:
    """Save the third checkpoint, in which the first is deleted, and die at a step of the writing thread."""
    left = [step]

    def count(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event.endswith("return") and code.co_filename in STORAGE_FILES and code.co_name in CHANGING:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

    threading.setprofile(count)
    save(run, 3)


def left_in(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in run.rglob("*"))


def fail_to_write(folder: Path) -> dict[str, Any]:
    """Save once, then without room and without permission; note the errors, and what can be loaded after each."""
    run, found = folder / "run", {}
    save(run, 1)
    for name, starve in (("room", half_the_room), ("permission", no_permission)):
        run.chmod(0o555 if name == "permission" else 0o755)
        reader, writer = os.pipe()
        os.waitpid(fork(lambda starve=starve, writer=writer: save_starved(run, starve, writer)), 0)  # type: ignore[misc]
        os.close(writer)
        found[name] = {"error": os.read(reader, 1 << 16).decode(), "left": left_in(run)}
        os.close(reader)
        assert number_in_newest(run) == 1
    run.chmod(0o755)
    save(run, 2)
    return {**found, "after": number_in_newest(run), "left": left_in(run)}


def half_the_room() -> AbstractContextManager[None]:
    """Let files have half of what the state needs: a write in the midst fails."""
    return full_disk(1 << 17)


@contextmanager
def no_permission() -> Iterator[None]:
    """Become nobody for good, if need be: the run folder belongs to another and is read-only."""
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    yield


def save_starved(run: Path, starve: Callable[[], AbstractContextManager[None]], answer: int) -> None:
    with starve():
        writer = CheckpointWriter(str(run), keep=2)
        writer.begin(steady_state(2), describe(2))
        try:
            writer.close()
        except CheckpointFailed as error:
            os.write(answer, str(error).encode())
