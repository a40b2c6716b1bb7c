"""Work on pictures in threads: what a caller gets, and when one that gives up leaves."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator

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
