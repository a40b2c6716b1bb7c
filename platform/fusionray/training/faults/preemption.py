"""The notice before an end: SIGTERM, as preemption, `ray job stop` and Kubernetes send it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

# What shells report of a process that SIGTERM ended.
EXIT_STATUS = 128 + signal.SIGTERM


@contextlib.contextmanager
def catch_preemption() -> Iterator[threading.Event]:
    """Hand out an event that SIGTERM sets while the block runs, in place of ending the process; a second one ends it.

    Signals reach the main thread alone: in another one the event is never set.
    """
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def take(number: int, frame: FrameType | None) -> None:
        del number, frame
        if came.is_set():
            raise SystemExit(EXIT_STATUS)
        came.set()

    former = signal.signal(signal.SIGTERM, take)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, former)
