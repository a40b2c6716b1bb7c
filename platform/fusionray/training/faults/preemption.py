"""The preemption signal: SIGTERM, which preemption, `ray job stop` and Kubernetes send before they end a process."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

# Exit status that shells report for a process that SIGTERM ended.
EXIT_STATUS = 128 + signal.SIGTERM


@contextlib.contextmanager
def catch_preemption() -> Iterator[threading.Event]:
    """Yield an event that the first SIGTERM sets during the block; a second SIGTERM ends the process.

    Only the main thread can handle signals: in another thread the event is never set.
    """
    preempted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield preempted
        return

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        if preempted.is_set():
            raise SystemExit(EXIT_STATUS)
        preempted.set()

    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield preempted
    finally:
        signal.signal(signal.SIGTERM, previous)
