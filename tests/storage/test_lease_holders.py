"""Leases of holders that were killed, fell silent, or live on another machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fusionray.storage.lease import Lease
from tests.storage.lease_cases import LONG_SECONDS, Clock, make, make_owner, sign_elsewhere
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
