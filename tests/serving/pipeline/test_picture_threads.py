"""Work on pictures in threads: what a caller gets, and when one that gives up leaves."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fusionray.serving.pipeline.memory_budget import MemoryBudget
from fusionray.serving.pipeline.picture_threads import PictureThreads


@pytest.fixture
def threads() -> Iterator[PictureThreads]:
    opened = PictureThreads(1, "pictures")
    yield opened
    opened.shutdown()


def test_a_caller_gets_what_is_made_or_the_error(threads: PictureThreads) -> None:
    assert asyncio.run(threads.run(divmod, 7, 3)) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(threads.run(divmod, 7, 0))


class Cores:
    """A share of the cores that a test sets."""

    def __init__(self, limit: int) -> None:
        self.now = limit
        self.lock = threading.Lock()
        self.num_working = self.most_working = 0

    def has_room(self, num_running: int, num_threads: int) -> bool:
        return num_running < min(num_threads, self.now)

    @contextmanager
    def working(self) -> Iterator[None]:
        with self.lock:
            self.num_working += 1
            self.most_working = max(self.most_working, self.num_working)
        try:
            yield
        finally:
            with self.lock:
                self.num_working -= 1


def test_fewer_threads_work_while_others_share_the_cores_and_callers_keep_their_order() -> None:
    cores = Cores(1)
    threads = PictureThreads(3, "pictures", cores)  # type: ignore[arg-type]
    begun: list[int] = []
    gates = [threading.Event() for _ in range(5)]

    def work(number: int) -> int:
        begun.append(number)
        assert gates[number].wait(10)
        return number

    async def seen(numbers: list[int]) -> None:
        async with asyncio.timeout(10):
            while begun != numbers:
                await asyncio.sleep(0.01)

    async def check() -> None:
        tasks = [asyncio.create_task(threads.run(work, number)) for number in range(5)]
        await seen([0])
        # One that gives up leaves the line.
        tasks[1].cancel()
        gates[0].set()
        await seen([0, 2])
        cores.now = 3
        gates[2].set()
        await seen([0, 2, 3, 4])
        for gate in gates:
            gate.set()
        assert [await task for task in tasks[2:]] == [2, 3, 4]
        assert tasks[1].cancelled()
        assert (threads.num_running, len(threads.waiting)) == (0, 0)
        assert (cores.num_working, cores.most_working) == (0, 5)

    try:
        asyncio.run(check())
    finally:
        for gate in gates:
            gate.set()
        threads.shutdown()


def test_a_caller_that_gives_up_as_its_turn_comes_gives_the_turn_back() -> None:
    async def check() -> None:
        threads = PictureThreads(1, "pictures")
        try:
            async with threads.take_turn():
                waiting = [asyncio.create_task(threads.run(divmod, 7, 3)) for _ in range(2)]
                await asyncio.sleep(0)
            # The turn is given, and its task has not run yet.
            assert threads.num_running == 1
            waiting[0].cancel()
            assert await waiting[1] == (2, 1)
            assert waiting[0].cancelled()
            assert threads.num_running == 0
        finally:
            threads.shutdown()

    asyncio.run(asyncio.wait_for(check(), 10))


@pytest.mark.parametrize("fails", [False, True])
def test_memory_is_free_when_the_work_of_a_caller_that_has_left_has_ended(
    threads: PictureThreads, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    budget = MemoryBudget(10)
    begun, release, done = threading.Event(), threading.Event(), []

    def work(name: str) -> None:
        begun.set()
        assert release.wait(10)
        done.append(name)
        if fails:
            raise ValueError(name)

    async def serve(name: str) -> None:
        async with budget.hold(4):
            await threads.run(work, name)

    async def check() -> None:
        working, waiting = (asyncio.create_task(serve(name)) for name in ("working", "waiting"))
        assert await asyncio.to_thread(begun.wait, 10)
        for task in (working, waiting):
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            # Its work has not begun, and never does.
            await waiting
        assert budget.free == 6
        assert not working.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert budget.free == 10
        assert done == ["working"]

    asyncio.run(check())
    gc.collect()
    # Its error is not logged as one that nobody looked at.
    assert caplog.records == []
