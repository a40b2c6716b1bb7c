"""The threads that decode, read, paste and encode pictures; the libraries release the GIL while they work."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")


class PictureThreads:
    """As many threads as are set, or one more than there are cores: one may wait for the generator."""

    def __init__(self, num_threads: int | None, name: str) -> None:
        self.num_threads = num_threads or len(os.sched_getaffinity(0)) + 1
        self.executor = ThreadPoolExecutor(self.num_threads, name)

    async def run(self, work: Callable[Arguments, Made], *arguments: Arguments.args, **named: Arguments.kwargs) -> Made:
        """Run work in a thread, and return what it makes.

        A caller that gives up leaves when the work has ended, or at once if it has not begun: until then pictures are
        in memory, which the caller has reserved.
        """
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

    def shutdown(self) -> None:
        """End the threads once they are idle."""
        self.executor.shutdown(wait=False)
