"""Leases in folders that are created, removed, emptied or replaced meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fusionray.storage.lease import Lease
from tests.storage.lease_cases import LONG_SECONDS, Clock, make, make_owner, sign_elsewhere


class Interrupted(Lease):
    """A lease with an event between its last read and its next creation of a file."""

    happening: Callable[[], object] | None = None

    def sign(self, place: int, number: int) -> bytes:
        happening, self.happening = self.happening, None
        if happening is not None:
            happening()
        return super().sign(place, number)


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
