from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import pytest

from fusionray.errors import TrackerFailed
from fusionray.tracking.background import MOST_WAITING, BackgroundTracker
from fusionray.tracking.runs import RunTracker


class SlowTracker(RunTracker):
    """A tracker whose store answers when the test says so."""

    def __init__(self) -> None:
        super().__init__("", "")
        self.answers = threading.Semaphore(0)
        self.stored: list[object] = []

    def log(self, images_seen: int, metrics: Mapping[str, float]) -> None:
        self.answers.acquire()
        if metrics.get("loss") == -1:
            raise TrackerFailed("tracking: refused")
        self.stored.append((images_seen, metrics))

    def log_preview(self, images_seen: int, picture: object, *, final: bool) -> None:
        self.answers.acquire()
        self.stored.append((images_seen, final))


def test_a_slow_store_holds_nobody_up_and_gets_all_in_order() -> None:
    slow = SlowTracker()
    tracker = BackgroundTracker(slow)
    metrics = {"loss": 1.0}
    for images in range(3):
        tracker.log(images, metrics)
    # What is changed afterwards is not what was logged.
    metrics["loss"] = 2.0
    tracker.log_preview(3, np.zeros((2, 2, 3), np.uint8), final=True)
    assert slow.stored == []
    slow.answers.release(4)
    tracker.flush()
    assert slow.stored == [*((images, {"loss": 1.0}) for images in range(3)), (3, True)]
    tracker.close()


def test_a_store_that_never_answers_is_waited_for_in_the_end() -> None:
    slow = SlowTracker()
    tracker = BackgroundTracker(slow)
    for images in range(MOST_WAITING):
        tracker.log(images, {})
    waiting = threading.Thread(target=tracker.log, args=(MOST_WAITING, {}))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    slow.answers.release(MOST_WAITING + 1)
    waiting.join()
    tracker.close()
    assert len(slow.stored) == MOST_WAITING + 1


def test_what_could_not_be_stored_is_raised_by_a_later_call() -> None:
    slow = SlowTracker()
    slow.answers.release(100)
    tracker = BackgroundTracker(slow)
    tracker.log(1, {"loss": -1})
    with pytest.raises(TrackerFailed, match="refused"):
        tracker.flush()
    tracker.log(2, {})
    tracker.flush()
    tracker.log(3, {"loss": -1})
    with pytest.raises(TrackerFailed, match="refused"):
        tracker.close()
    assert slow.stored == [(2, {})]
