from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from fusionray.errors import Overloaded
from fusionray.faces.face import Image
from fusionray.runtime.batching import PictureBatcher
from fusionray.runtime.engines.engine import EngineReport


class SingleRunner:
    """Adds `plus` to its picture when the gate is released; records the first pixels of each run."""

    inputs = ("picture",)
    report = EngineReport("CPUExecutionProvider", ("CPUExecutionProvider",), 1, "none")

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)

    def warm_up(self) -> None: ...

    def run(self, pictures: Mapping[str, Image], *, plus: int = 0) -> Image:
        return self.make([pictures], [plus])[0]

    def make(self, pictures: Sequence[Mapping[str, Image]], added: Sequence[int]) -> list[Image]:
        self.entered.release()
        self.gate.acquire()
        self.batches.append([int(call["picture"][0, 0, 0]) for call in pictures])
        if min(added) < 0:
            raise ValueError("negative")
        return [call["picture"] + np.uint8(plus) for call, plus in zip(pictures, added, strict=True)]


class SharingRunner(SingleRunner):
    """Takes pictures of one size together, and those of 9 rows alone."""

    def batch_key(self, pictures: Mapping[str, Image]) -> Hashable:
        rows = len(pictures["picture"])
        return None if rows == 9 else rows

    def run_many(self, pictures: Sequence[Mapping[str, Image]], settings: Sequence[Mapping[str, Any]]) -> list[Image]:
        return self.make(pictures, [each.get("plus", 0) for each in settings])


def picture(value: int, rows: int = 2) -> dict[str, Image]:
    return {"picture": np.full((rows, 2, 3), value, np.uint8)}


def test_calls_of_one_caller_after_each_other_get_all_threads() -> None:
    alone, shared = SharingRunner(), SharingRunner()
    for each in (alone, shared):
        each.gate.release(1000)
    batcher = PictureBatcher(alone, concurrent_runner=shared, num_streams=2)
    for value in range(200):
        batcher.submit(picture(value), {}).result(5)
    assert (len(alone.batches), shared.batches) == (200, [])
    batcher.close()


def test_pictures_of_one_key_share_batches_and_the_first_comes_first() -> None:
    runner = SharingRunner()
    batcher = PictureBatcher(runner, max_batch=3)
    first = batcher.submit(picture(1), {})
    runner.entered.acquire()
    kinds = ((2, 2), (3, 4), (4, 9), (5, 2), (6, 9), (7, 2), (8, 2), (9, 4))
    others = [batcher.submit(picture(value, rows), {"plus": value}) for value, rows in kinds]
    runner.gate.release(100)
    assert first.result(5)[0][0, 0, 0] == 1
    for (value, rows), other in zip(kinds, others, strict=True):
        made, waited = other.result(5)
        assert (made.shape[0], int(made[0, 0, 0])) == (rows, 2 * value)
        assert waited > 0
    assert runner.batches == [[1], [2, 5, 7], [3, 9], [4], [6], [8]]
    assert batcher.num_waiting == 0
    batcher.close()


def test_a_picture_that_fails_does_not_fail_the_others_of_its_batch() -> None:
    runner = SharingRunner()
    batcher = PictureBatcher(runner, max_batch=4, max_waiting=3)
    batcher.submit(picture(0), {})
    runner.entered.acquire()
    calls = [batcher.submit(picture(value), {"plus": plus}) for value, plus in ((1, 1), (2, -1), (3, 3))]
    with pytest.raises(Overloaded, match="3 pictures wait"):
        batcher.submit(picture(4), {})
    runner.gate.release(100)
    assert [calls[k].result(5)[0][0, 0, 0] for k in (0, 2)] == [2, 6]
    with pytest.raises(ValueError, match="negative"):
        calls[1].result(5)
    batcher.close()


def test_a_runner_of_one_picture_at_a_time_is_never_called_from_two_threads() -> None:
    runner = SingleRunner()
    batcher = PictureBatcher(runner, max_batch=4, num_streams=3)
    calls = [batcher.submit(picture(value), {"plus": 1}) for value in range(4)]
    runner.entered.acquire()
    assert not runner.entered.acquire(timeout=0.2)
    runner.gate.release(100)
    assert [call.result(5)[0][0, 0, 0] for call in calls] == [1, 2, 3, 4]
    assert runner.batches == [[0], [1], [2], [3]]
    batcher.close()
