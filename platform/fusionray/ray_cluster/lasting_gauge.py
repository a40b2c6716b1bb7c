"""A gauge for Prometheus that stays until its value changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from weakref import WeakSet

from ray.util.metrics import Gauge

REFRESH_SECONDS = 1.0
GAUGES: WeakSet[LastingGauge] = WeakSet()
# Over the two lists: they must not grow while the thread goes through them.
LOCK = threading.Lock()
# The thread that sets all gauges of this process again; none before the first gauge.
REFRESHERS: list[threading.Thread] = []


class LastingGauge:
    """A gauge of Ray that is exported as long as this object lives.

    Ray exports a gauge only for two of its intervals (20 s) after it was set: what is set once a minute, or once, would
    come and go, and an alert that waits for ten minutes of it would never fire. So a thread sets it again and again.
    """

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...] = ()) -> None:
        self.described = (name, description, tag_keys)
        self.gauge = Gauge(*self.described)
        self.values: dict[tuple[tuple[str, str], ...], float] = {}
        with LOCK:
            GAUGES.add(self)
            if not REFRESHERS:
                REFRESHERS.append(threading.Thread(target=refresh_for_ever, name="gauges", daemon=True))
                REFRESHERS[0].start()

    def __reduce__(self) -> tuple[type[LastingGauge], tuple[str, str, tuple[str, ...]]]:
        # A copy in another process has no values: they would be exported twice.
        return LastingGauge, self.described

    def set(self, value: float, tags: Mapping[str, str] | None = None) -> None:
        """Set the value of a series."""
        tags = dict(tags or {})
        self.values[tuple(tags.items())] = value
        self.gauge.set(value, tags)

    def refresh(self) -> None:
        """Set all series again."""
        for tags, value in list(self.values.items()):
            self.gauge.set(value, dict(tags))


def refresh_for_ever() -> None:
    while True:
        time.sleep(REFRESH_SECONDS)
        refresh_all()


def refresh_all() -> None:
    # A function of its own: its variables hold no gauge during the pause.
    with LOCK:
        gauges = list(GAUGES)
    for gauge in gauges:
        gauge.refresh()
