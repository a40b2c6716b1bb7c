"""Run an iterator, or calls, ahead of their consumer, in threads."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class PrefetchedItems(Iterator[ItemT], Generic[ItemT]):
    """What a thread has made, in its order; an error of the thread is raised after what came before it."""

    def __init__(self, depth: int) -> None:
        self.items: queue.SimpleQueue[tuple[ItemT | None, BaseException | None]] = queue.SimpleQueue()
        # A semaphore instead of a bounded queue, whose producer would hold one item more than `depth`.
        self.free_slots = threading.Semaphore(depth)
        self.stopped = threading.Event()
        self.ended = False

    def __next__(self) -> ItemT:
        return self.take()

    def take(self, timeout: float | None = None) -> ItemT:
        """Wait for the next item, at most `timeout` seconds.

        Raises: StopIteration at the end; TimeoutError; any error of the producer.
        """
        if self.ended:
            raise StopIteration
        try:
            item, error = self.items.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None
        if error is not None:
            self.ended = True
            raise error
        if item is None:
            self.ended = True
            raise StopIteration
        self.free_slots.release()
        return item

    def produce(self, make: Callable[[], Iterator[ItemT]]) -> None:
        """Iterate, at most as many items ahead as there are free slots; called in the thread."""
        try:
            with contextlib.ExitStack() as stack:
                source = make()
                if hasattr(source, "close"):
                    stack.callback(source.close)
                while self.free_slots.acquire() and not self.stopped.is_set():
                    self.items.put((next(source), None))
        except StopIteration:
            self.items.put((None, None))
        except BaseException as error:  # noqa: BLE001 - raised again in the consumer
            self.items.put((None, error))


@contextlib.contextmanager
def prefetched(make: Callable[[], Iterator[ItemT]], depth: int) -> Iterator[PrefetchedItems[ItemT]]:
    """Run an iterator in a thread that is at most `depth` items ahead; its errors are raised in the consumer.

    Leaving the context stops the thread and closes the iterator.
    """
    items = PrefetchedItems[ItemT](depth)
    thread = threading.Thread(target=items.produce, args=(make,), name="prefetch", daemon=True)
    thread.start()
    try:
        yield items
    finally:
        items.stopped.set()
        items.free_slots.release()
        thread.join(timeout=5)


def map_ahead(
    function: Callable[[ItemT], ResultT],
    items: Iterable[ItemT],
    *,
    at_once: int,
    leave: Callable[[], object] = lambda: None,
) -> Generator[ResultT]:
    """Yield `function(item)` in the order of the items, while threads compute the next `at_once` of them.

    At its end, also by an error, it waits for what is computed; `leave` is called before, to end that early.
    """
    pool = ThreadPoolExecutor(at_once, "ahead")
    pending: deque[Future[ResultT]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > at_once:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        leave()
        pool.shutdown(cancel_futures=True)
