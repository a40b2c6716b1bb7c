"""One at a time holds a lease: it is taken, renewed, released, or lost after its timeout."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fusionray.storage.lease import RELEASED, Lease
from tests.storage.lease_cases import LONG_SECONDS, Clock, make


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


def test_a_lease_names_its_holder_until_it_is_released(tmp_path: Path) -> None:
    lease = Lease(tmp_path, timeout_seconds=9)
    assert lease.try_take()
    signed = lease.path(1).read_bytes()
    assert lease.read_state().holder is not None
    lease.release()
    assert lease.path(1).read_bytes() == signed + RELEASED
    assert lease.read_state().holder is None
