from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fusionray.runtime.lease import Lease, read_holder

STALE = 0.5


def holder_elsewhere(path: Path) -> dict[str, object]:
    """Write a lock file as a process of another machine would."""
    told: dict[str, object] = {"token": "t", "host": "far", "machine": "other boot", "pid": 1, "started": "1"}
    path.write_text(json.dumps(told))
    return told


def acquire_within(lease: Lease, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if lease.acquire():
            return True
        time.sleep(0.02)
    return False


def test_only_one_holds_a_lease_until_it_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with Lease(path, STALE) as first:
        assert first.acquire()
        second = Lease(path, STALE)
        # Alive on this machine: however long it takes, it is not stale.
        assert not acquire_within(second, 3 * STALE)
    assert not path.exists()
    with second:
        assert second.acquire()


def test_of_many_that_ask_at_once_one_gets_it(tmp_path: Path) -> None:
    barrier, got = threading.Barrier(16), []
    leases = [Lease(tmp_path / "lock", 60.0) for _ in range(16)]

    def ask(lease: Lease) -> None:
        barrier.wait()
        if lease.acquire():
            got.append(lease)

    threads = [threading.Thread(target=ask, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1
    got[0].release()


def test_the_lease_of_a_dead_process_of_this_machine_is_taken_at_once(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import os, signal, sys; from pathlib import Path; from fusionray.runtime.lease import Lease\n"
        f"assert Lease(Path({str(path)!r}), 3600).acquire()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": "platform"}, check=False)
    assert path.exists()
    with Lease(path, 3600) as lease:
        assert lease.acquire()


def test_a_number_that_another_process_has_now_does_not_keep_a_lease(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with Lease(path, 3600) as lease:
        assert lease.acquire()
        holder = read_holder(path)
        assert holder is not None
    path.write_text(json.dumps({**holder.__dict__, "started": "1", "token": "former"}))
    with Lease(path, 3600) as lease:
        assert lease.acquire()


def test_a_holder_elsewhere_is_dead_when_its_heartbeat_stops(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder_elsewhere(path)
    lease = Lease(path, STALE)
    for _ in range(8):
        os.utime(path, ns=(time.time_ns(), time.time_ns()))
        assert not lease.acquire()
        time.sleep(STALE / 4)
    with lease:
        assert acquire_within(lease, 10 * STALE)


def test_a_lock_whose_maker_died_before_it_signed_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    lease = Lease(path, STALE)
    assert not lease.acquire()
    with lease:
        assert acquire_within(lease, 10 * STALE)


@pytest.mark.parametrize("hours", [-5, 5])
def test_clocks_that_disagree_do_not_make_a_holder_dead(tmp_path: Path, hours: int) -> None:
    path = tmp_path / "lock"
    holder_elsewhere(path)
    os.utime(path, (time.time() + hours * 3600,) * 2)
    assert not Lease(path, STALE).acquire()


def test_a_holder_gives_signs_of_life(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with Lease(path, STALE) as lease:
        assert lease.acquire()
        os.utime(path, (0, 0))
        time.sleep(STALE)
        assert path.stat().st_mtime > 0


def test_a_living_lease_that_was_taken_for_a_dead_one_is_put_back(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder_elsewhere(path)
    slow = Lease(path, 0.0)
    slow.is_stale()
    path.unlink()
    with Lease(path, 3600) as fast:
        assert fast.acquire()
        slow.evict()
        found = read_holder(path)
        assert found == fast.mine
        # And what another holds is not removed by whoever lost it.
    assert list(tmp_path.iterdir()) == []


def test_who_was_taken_over_leaves_the_lock_of_the_next_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lease = Lease(path, 3600)
    assert lease.acquire()
    path.unlink()
    told = holder_elsewhere(path)
    lease.release()
    assert json.loads(path.read_text()) == told
