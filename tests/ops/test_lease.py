from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fusionray.ops.lease import Lease


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(folder: Path, clock: Clock) -> Lease:
    return Lease(folder, timeout_seconds=10.0, clock=clock)


def test_one_holds_until_it_gives_back(tmp_path: Path) -> None:
    clock = Clock()
    first, second = make(tmp_path, clock), make(tmp_path, clock)
    assert first.try_take()
    assert not second.try_take()
    first.give_back()
    assert not first.is_held
    assert second.try_take()
    assert (second.is_held, second.count_lost()) == (True, 0)
    first.give_back()
    assert second.renew()


def test_a_silent_holder_is_given_up_after_the_time_out_and_learns_of_it(tmp_path: Path) -> None:
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
    first.give_back()
    assert second.renew()


def test_a_holder_that_renews_is_never_given_up(tmp_path: Path) -> None:
    clock = Clock()
    first, second = make(tmp_path, clock), make(tmp_path, clock)
    assert first.try_take()
    for _ in range(20):
        clock.now += 6.0
        assert first.renew()
        assert not second.try_take()


def test_a_watcher_that_has_just_begun_waits_the_whole_time_out(tmp_path: Path) -> None:
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
def test_of_many_who_take_at_once_exactly_one_holds(tmp_path: Path, is_silent: bool) -> None:
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


def test_a_lease_is_kept_beside_a_block_and_given_back_after(tmp_path: Path) -> None:
    first, second = (Lease(tmp_path, timeout_seconds=0.4) for _ in range(2))
    assert first.try_take()
    with first.kept():
        for _ in range(15):
            assert not second.try_take()
            threading.Event().wait(0.1)
        assert first.is_held
    assert second.try_take()


def test_leases_of_other_names_and_strange_files_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "lease-x").touch()
    (tmp_path / "lease-0000001").touch()
    first, second = Lease(tmp_path, "a", timeout_seconds=9), Lease(tmp_path, "b", timeout_seconds=9)
    assert first.try_take()
    assert second.try_take()


def test_a_folder_that_goes_takes_the_lease_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    lease = make(folder, Clock())
    assert lease.try_take()
    lease.path(1).unlink()
    folder.rmdir()
    assert not lease.renew()
    lease.give_back()
    with pytest.raises(FileNotFoundError):
        lease.try_take()
