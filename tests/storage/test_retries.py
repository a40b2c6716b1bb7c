from __future__ import annotations

import errno
from unittest.mock import Mock

import pytest
from pyarrow import fs

from fusionray.storage import retries
from fusionray.storage.retries import TRIES, ask_again

REFUSED = OSError("AWS Error SLOW_DOWN")


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "PAUSE_SECONDS", 0.0)


def test_a_store_that_refuses_for_a_moment_is_asked_again() -> None:
    ask = Mock(side_effect=[REFUSED, REFUSED, b"found"])
    assert ask_again(Mock(spec=fs.S3FileSystem), ask) == b"found"
    assert ask.call_count == 3


def test_a_store_that_refuses_for_long_is_given_up() -> None:
    ask = Mock(side_effect=REFUSED)
    with pytest.raises(OSError, match="SLOW_DOWN"):
        ask_again(Mock(spec=fs.S3FileSystem), ask)
    assert ask.call_count == TRIES


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOSPC, errno.EACCES])
def test_what_is_no_refusal_is_told_at_once(number: int) -> None:
    ask = Mock(side_effect=OSError(number, "as it is"))
    with pytest.raises(OSError, match="as it is"):
        ask_again(Mock(spec=fs.S3FileSystem), ask)
    assert ask.call_count == 1


def test_a_local_disk_is_asked_once() -> None:
    ask = Mock(side_effect=REFUSED)
    with pytest.raises(OSError, match="SLOW_DOWN"):
        ask_again(fs.LocalFileSystem(), ask)
    assert ask.call_count == 1
