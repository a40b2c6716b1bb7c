"""A background thread for the duration of a `with` block."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

END_SECONDS = 10.0


@contextlib.contextmanager
def run_in_background(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run `work(stop)` in a thread; after the block, set `stop` and wait for the thread up to `END_SECONDS`."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=END_SECONDS)
