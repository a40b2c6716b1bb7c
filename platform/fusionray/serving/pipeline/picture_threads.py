"""The threads that decode, read, paste and encode pictures; the libraries release the GIL while they work."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from typing import ParamSpec, TypeVar

from fusionray.serving.config import ServeConfig
from fusionray.serving.pipeline.core_share import CoreShare, share_cores
from fusionray.serving.replicas import count_threads

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")


def open_picture_threads(config: ServeConfig, name: str) -> PictureThreads:
    """Open as many threads as are set; else one for each core of this replica, and replicas of a node divide them."""
    cores = share_cores() if config.faces.threads is None else None
    return PictureThreads(config.faces.threads or (count_threads() if cores else None), name, cores)


class PictureThreads:
    """As many threads as are set, or as there are cores; fewer work at once while other processes use the `cores`.

    All calls come from one event loop.
    """

    def __init__(self, num_threads: int | None, name: str, cores: CoreShare | None = None) -> None:
        self.num_threads = num_threads or len(os.sched_getaffinity(0))
        self.executor = ThreadPoolExecutor(self.num_threads, name)
        self.cores = cores
        self.num_running = 0
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def run(self, work: Callable[Arguments, Made], *arguments: Arguments.args, **named: Arguments.kwargs) -> Made:
        """Run work in a thread, and return what it makes.

        A caller that gives up leaves when the work has ended, or at once if it has not begun: until then pictures are
        in memory, which the caller has reserved.
        """
        # Also while it waits: between two pictures, other replicas would take this one for idle.
        with self.cores.working() if self.cores is not None else nullcontext():
            return await self.run_in_turn(work, *arguments, **named)

    async def run_in_turn(
        self, work: Callable[Arguments, Made], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Made:
        async with self.take_turn():
            future = self.executor.submit(work, *arguments, **named)
            ended = asyncio.wrap_future(future)
            try:
                return await asyncio.shield(ended)
            except asyncio.CancelledError:
                if not future.cancel():
                    await asyncio.wait([ended])
                    # Nobody is left to whom an error of the work matters.
                    ended.exception()
                raise

    @asynccontextmanager
    async def take_turn(self) -> AsyncIterator[None]:
        """Wait until one more may work, first come, first served; it does for the length of an `async with` block."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        self.admit()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self.num_running -= 1
            else:
                turn.cancel()
            self.admit()

    def admit(self) -> None:
        """Let those begin who are first, as many as may work at once; forget those who have given up."""
        while self.waiting and (self.waiting[0].cancelled() or self.has_room()):
            turn = self.waiting.popleft()
            if not turn.cancelled():
                self.num_running += 1
                turn.set_result(None)

    def has_room(self) -> bool:
        """Tell whether one more may work."""
        if self.cores is None:
            return self.num_running < self.num_threads
        return self.cores.has_room(self.num_running, self.num_threads)

    def shutdown(self) -> None:
        """End the threads once they are idle."""
        self.executor.shutdown(wait=False)
