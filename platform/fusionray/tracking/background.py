"""Write a run's metrics and pictures from a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionray.tracking.runs import RunTracker

# Entries that wait to be written; then the caller waits.
MOST_WAITING = 16


class BackgroundTracker:
    """A tracker that does not wait for its store: all workers of a training would wait with it.

    What could not be written is raised by the next call. Call `close` at the end.
    """

    def __init__(self, tracker: RunTracker) -> None:
        self.tracker = tracker
        self.thread = ThreadPoolExecutor(1, "tracker")
        self.waiting: deque[Future[None]] = deque()

    def log(self, images_seen: int, metrics: Mapping[str, float]) -> None:
        """Log metrics as `RunTracker.log`.

        Raises: TrackerFailed if the store rejected this or an earlier entry.
        """
        self.submit(self.tracker.log, images_seen, dict(metrics))

    def log_preview(self, images_seen: int, picture: NDArray[np.uint8], *, final: bool) -> None:
        """Log a picture as `RunTracker.log_preview`; it must not be changed afterwards.

        Raises: as `log`.
        """
        self.submit(self.tracker.log_preview, images_seen, picture, final=final)

    def submit(self, call: Callable[..., None], *arguments: Any, **named: Any) -> None:
        while self.waiting and (len(self.waiting) >= MOST_WAITING or self.waiting[0].done()):
            self.waiting.popleft().result()
        self.waiting.append(self.thread.submit(call, *arguments, **named))

    def flush(self) -> None:
        """Wait until everything is written.

        Raises: as `log`.
        """
        while self.waiting:
            self.waiting.popleft().result()

    def close(self) -> None:
        """Write what waits, and end the thread.

        Raises: as `log`.
        """
        try:
            self.flush()
        finally:
            self.thread.shutdown(cancel_futures=True)
