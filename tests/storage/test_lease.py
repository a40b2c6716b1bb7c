from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fusionray.storage.lease import RELEASED, Lease
from tests.support.child_python import ROOT, run_python

CHILD = """
import os, shutil, signal, sys
from pathlib import Path
from fusionray.storage.lease import Lease
lease = Lease(Path(sys.argv[1]), timeout_seconds=0.4, owns_folder=sys.argv[2] == "owns")
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
def sleep():
    print("taken", flush=True)
    signal.pause()
if sys.argv[3] == "signing":
    os.fdopen = die
assert lease.try_take()
if sys.argv[3] == "holding":
    die()
if sys.argv[3] == "living":
    with lease.held():
        sleep()
if sys.argv[3] == "silent":
    sleep()
if sys.argv[3] == "closing":
    os.rename = die
shutil.rmtree = die
lease.release()
"""
LONG_SECONDS = 3600.0


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(folder: Path, clock: Clock) -> Lease:
    return Lease(folder, timeout_seconds=10.0, clock=clock)


def make_owner(folder: Path, timeout_seconds: float = LONG_SECONDS) -> Lease:
    """Make a lease that creates and removes its folder, as in the engine cache."""
    return Lease(folder, timeout_seconds=timeout_seconds, trust_living=True, owns_folder=True)


def sign_elsewhere(folder: Path, number: int = 1) -> Path:
    """Take a lease as a process of another machine does."""
    path = folder / f"lease-{number:06d}"
    told = {"token": "t", "host": "far", "machine": "other boot", "pid": os.getpid(), "started": "1"}
    path.write_text(json.dumps(told))
    return path


class Interrupted(Lease):
    """A lease with an event between its last read and its next creation of a file."""

    happening: Callable[[], object] | None = None

    def sign(self, place: int, number: int) -> bytes:
        happening, self.happening = self.happening, None
        if happening is not None:
            happening()
        return super().sign(place, number)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start processes that take a lease; kill them at the end."""
    started = []

    def begin(folder: Path, fate: str, *, owns_folder: bool = False) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder), "owns" if owns_folder else "", fate],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "platform")},
        )
        started.append(child)
        assert child.stdout is not None
        if child.stdout.readline() != "taken\n":
            assert child.wait(timeout=60) == -signal.SIGKILL
        return child

    yield begin
    for child in started:
        child.kill()
        child.communicate()


def test_one_process_holds_a_lease_until_it_releases_it(tmp_path: Path) -> None:
    clock = Clock()
    first, second = make(tmp_path, clock), make(tmp_path, clock)
    assert first.try_take()
    assert not second.try_take()
    first.release()
    assert not first.is_held
    assert second.try_take()
    assert (second.is_held, second.count_lost()) == (True, 0)
    first.release()
    assert second.renew()


def test_a_silent_holder_loses_its_lease_after_the_timeout_and_notices(tmp_path: Path) -> None:
    clock = Clock()
    first, second = make(tmp_path, clock), make(tmp_path, clock)
    assert first.try_take()
    assert not second.try_take()
    clock.now = 9.9
    assert not second.try_take()
    clock.now = 10.0
    assert not first.is_held
    assert second.try_take()
    assert second.count_lost() == 1
    assert not first.renew()
    assert not first.is_held
    first.release()
    assert second.renew()


def test_a_holder_that_renews_keeps_its_lease(tmp_path: Path) -> None:
    clock = Clock()
    first, second = make(tmp_path, clock), make(tmp_path, clock)
    assert first.try_take()
    for _ in range(20):
        clock.now += 6.0
        assert first.renew()
        assert not second.try_take()


def test_a_new_watcher_waits_the_whole_timeout(tmp_path: Path) -> None:
    clock = Clock()
    assert make(tmp_path, clock).try_take()
    clock.now = 1000.0
    late = make(tmp_path, clock)
    assert not late.try_take()
    clock.now = 1009.0
    assert not late.try_take()
    clock.now = 1010.0
    assert late.try_take()


@pytest.mark.parametrize("is_silent", [False, True])
def test_exactly_one_of_many_concurrent_takers_holds_the_lease(tmp_path: Path, is_silent: bool) -> None:
    for number in range(30):
        folder, clock = tmp_path / str(number), Clock()
        folder.mkdir()
        leases = [make(folder, clock) for _ in range(8)]
        if is_silent:
            assert make(folder, clock).try_take()
            assert not any(lease.try_take() for lease in leases)
            clock.now = 10.0
        barrier = threading.Barrier(8)

        def take(lease: Lease, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait()
            return lease.try_take()

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(take, leases)) == 1


def test_a_lease_is_renewed_during_a_block_and_released_after_it(tmp_path: Path) -> None:
    first, second = (Lease(tmp_path, timeout_seconds=0.4) for _ in range(2))
    assert first.try_take()
    with first.held():
        for _ in range(15):
            assert not second.try_take()
            threading.Event().wait(0.1)
        assert first.is_held
    assert second.try_take()


def test_leases_of_other_names_and_other_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "lease-x").touch()
    (tmp_path / "lease-0000001").touch()
    first, second = Lease(tmp_path, "a", timeout_seconds=9), Lease(tmp_path, "b", timeout_seconds=9)
    assert first.try_take()
    assert second.try_take()


def test_a_lease_ends_with_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    lease = make(folder, Clock())
    assert lease.try_take()
    lease.path(1).unlink()
    folder.rmdir()
    assert not lease.renew()
    lease.release()
    with pytest.raises(FileNotFoundError):
        lease.try_take()


def test_the_lease_of_a_killed_process_is_taken_at_once(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    start(tmp_path, "holding")
    watcher = Lease(tmp_path, timeout_seconds=LONG_SECONDS)
    assert watcher.try_take()
    assert watcher.count_lost() == 1


def test_a_zombie_process_counts_as_dead(tmp_path: Path) -> None:
    if (pid := os.fork()) == 0:
        Lease(tmp_path, timeout_seconds=LONG_SECONDS).try_take()
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert Lease(tmp_path, timeout_seconds=LONG_SECONDS).try_take()
    finally:
        os.waitpid(pid, 0)


def test_a_patient_watcher_waits_for_a_dead_holder(tmp_path: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    start(tmp_path, "holding")
    clock = Clock()
    watcher = make(tmp_path, clock)
    assert not watcher.try_take(patient=True)
    clock.now = 9.9
    assert not watcher.try_take(patient=True)
    clock.now = 10.0
    assert watcher.try_take(patient=True)


def test_a_reused_pid_does_not_keep_a_lease(tmp_path: Path) -> None:
    first = Lease(tmp_path, timeout_seconds=LONG_SECONDS)
    assert first.try_take()
    told = json.loads(first.path(1).read_bytes())
    assert told["pid"] == os.getpid()
    first.path(1).write_text(json.dumps({**told, "started": "1"}))
    assert Lease(tmp_path, timeout_seconds=LONG_SECONDS, trust_living=True).try_take()


def test_a_silent_living_holder_keeps_only_a_lease_that_trusts_it(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    child = start(tmp_path, "silent")
    clock = Clock()
    trusting = Lease(tmp_path, timeout_seconds=10.0, trust_living=True, clock=clock)
    strict = make(tmp_path, clock)
    assert not trusting.try_take()
    assert not strict.try_take()
    clock.now = 1000.0
    assert not trusting.try_take()
    child.send_signal(signal.SIGSTOP)
    assert not trusting.try_take()
    assert strict.try_take()
    strict.release()
    assert trusting.try_take()


def test_a_living_holder_sends_heartbeats_until_it_is_killed(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    child = start(tmp_path, "living")
    watcher = Lease(tmp_path, timeout_seconds=0.8)
    os.utime(watcher.path(1), (0, 0))
    for _ in range(12):
        assert not watcher.try_take()
        time.sleep(0.1)
    assert watcher.path(1).stat().st_mtime > 0
    child.kill()
    child.wait()
    assert watcher.try_take()


@pytest.mark.parametrize("hours", [-5, 0, 5])
def test_a_remote_holder_loses_its_lease_when_its_heartbeat_stops_whatever_its_clock(
    tmp_path: Path, hours: int
) -> None:
    path, clock = sign_elsewhere(tmp_path), Clock()
    watcher = Lease(tmp_path, timeout_seconds=10.0, trust_living=True, clock=clock)
    for beat in range(8):
        os.utime(path, (time.time() + hours * 3600 + beat,) * 2)
        assert not watcher.try_take()
        clock.now += 9.9
    assert not watcher.try_take()
    clock.now += 0.2
    assert watcher.try_take()


@pytest.mark.parametrize("content", [b"", b'{"token": "t", "ho', b"[]", b'{"host": "", "machine": "", "pid": {}}'])
def test_a_holder_without_a_key_loses_its_lease_by_its_heartbeat(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lease-000001").write_bytes(content)
    clock = Clock()
    watcher = Lease(tmp_path, timeout_seconds=10.0, trust_living=True, clock=clock)
    assert not watcher.try_take()
    clock.now = 9.9
    assert not watcher.try_take()
    clock.now = 10.0
    assert watcher.try_take()


def test_a_process_killed_while_it_writes_its_key_does_not_block_others(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    start(tmp_path, "signing")
    assert (tmp_path / "lease-000001").read_bytes() == b""
    watcher = Lease(tmp_path, timeout_seconds=0.2)
    assert not watcher.try_take()
    time.sleep(0.3)
    assert watcher.try_take()


def test_a_lease_can_be_taken_and_renewed_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    first, second = (Lease(tmp_path, timeout_seconds=LONG_SECONDS) for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr("fusionray.storage.lease.os.fdopen", refuse)
        assert first.try_take()
    assert first.renew()
    assert not second.try_take()
    first.release()
    assert second.try_take()


def test_a_lease_creates_and_removes_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "key"
    for _ in range(3):
        first, second = make_owner(folder), make_owner(folder)
        assert first.try_take()
        assert not second.try_take()
        assert first.renew()
        first.release()
        assert list(tmp_path.iterdir()) == []
        assert not first.renew()
        first.release()
    shutil.rmtree(tmp_path)
    with pytest.raises(FileNotFoundError):
        first.try_take()


def test_a_holder_that_lost_its_lease_leaves_the_folder_to_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "key"
    lease = make_owner(folder)
    assert lease.try_take()
    sign_elsewhere(folder, 2)
    lease.release()
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
    assert {path.name for path in folder.iterdir()} == {"lease-000001", "lease-000002"}


def test_a_holder_that_loses_its_lease_during_the_release_leaves_the_folder_to_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "key"
    lease = Interrupted(folder, timeout_seconds=LONG_SECONDS, owns_folder=True)
    assert lease.try_take()
    lease.happening = lambda: sign_elsewhere(folder, 2)
    lease.release()
    assert {path.name for path in folder.iterdir()} == {"lease-000001", "lease-000002"}


def test_a_suspended_holder_leaves_the_folder_that_replaced_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "key"
    first, second = make_owner(folder), make_owner(folder)
    assert first.try_take()
    shutil.rmtree(folder)
    assert second.try_take()
    assert first.number == second.number == 1
    beaten_at = second.path(1).stat().st_mtime_ns
    first.release()
    assert second.renew()
    first.number = 1
    assert not first.renew()
    assert second.path(1).stat().st_mtime_ns >= beaten_at
    assert second.renew()


def test_a_slow_watcher_never_takes_a_lease_in_a_folder_that_replaced_the_one_it_read(tmp_path: Path) -> None:
    folder = tmp_path / "key"
    folder.mkdir()
    sign_elsewhere(folder)
    slow = Interrupted(folder, timeout_seconds=0.0, owns_folder=True)
    assert not slow.try_take()
    others = [make_owner(folder, 0.0), make_owner(folder)]

    def be_overtaken() -> None:
        assert not others[0].try_take()
        assert others[0].try_take()
        others[0].release()
        assert others[1].try_take()

    slow.happening = be_overtaken
    assert not slow.try_take()
    assert [path.name for path in folder.iterdir()] == ["lease-000001"]
    assert others[1].renew()


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_slow_watcher_never_holds_in_a_folder_that_is_being_emptied(tmp_path: Path, comes_back: bool) -> None:
    folder, aside = tmp_path / "key", tmp_path / ".key.gone"
    folder.mkdir()
    sign_elsewhere(folder)
    slow, next_one = Interrupted(folder, timeout_seconds=0.0, owns_folder=True), make_owner(folder)
    assert not slow.try_take()

    def empty() -> None:
        folder.rename(aside)
        (aside / "lease-000001").unlink()
        assert not comes_back or next_one.try_take()

    slow.happening = empty
    assert not slow.try_take()
    assert list(aside.iterdir()) == []
    assert next_one.renew() if comes_back else next_one.try_take()


@pytest.mark.parametrize("fate", ["holding", "closing", "removing"])
def test_a_process_killed_while_it_holds_or_releases_a_folder_blocks_nobody(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]], fate: str
) -> None:
    folder = tmp_path / "key"
    start(folder, fate, owns_folder=True)
    taken = {"holding": 1, "closing": 2, "removing": 0}[fate]
    assert len(list(folder.glob("*"))) == taken
    lease = make_owner(folder)
    assert lease.try_take()
    assert lease.number == taken + 1
    lease.release()
    assert not folder.exists()


@pytest.mark.parametrize(("kind", "num_kills"), [("job", 60), ("cache", 150), ("elsewhere", 6)])
def test_racing_and_killed_processes_never_share_a_lease(tmp_path: Path, kind: str, num_kills: int) -> None:
    seen = json.loads(run_python("-m", "tests.storage.lease_race", str(tmp_path), kind, str(num_kills)))
    assert (seen["two"], seen["lost"], seen["stuck"]) == (0, 0, False)
    assert seen["taken"] >= num_kills
    if kind == "cache":
        last = make_owner(tmp_path / "lease", 0.0)
        assert last.try_take() or last.try_take()
        last.release()
        assert not last.folder.exists()


def test_a_lease_names_its_holder_until_it_is_released(tmp_path: Path) -> None:
    lease = Lease(tmp_path, timeout_seconds=9)
    assert lease.try_take()
    signed = lease.path(1).read_bytes()
    assert lease.read_state().holder is not None
    lease.release()
    assert lease.path(1).read_bytes() == signed + RELEASED
    assert lease.read_state().holder is None
