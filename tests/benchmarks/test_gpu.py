from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fusionray.benchmarks.train.gpu import busy_seconds


def build_event(start: float, end: float, device: str = "CUDA", *, marked: bool = False) -> Any:
    """Build an event as the profiler has them, times in us."""
    return SimpleNamespace(
        time_range=SimpleNamespace(start=start * 1e6, end=end * 1e6),
        device_type=SimpleNamespace(name=device),
        is_user_annotation=marked,
    )


def test_a_device_is_busy_while_at_least_one_kernel_runs() -> None:
    events = [
        build_event(0.0, 1.0),  # before the window, but for half a second
        build_event(2.0, 3.0),
        build_event(2.5, 3.5),  # on another stream
        build_event(0.0, 4.5, "CPU"),
        build_event(0.0, 4.5, marked=True),
        build_event(4.0, 4.5),
    ]
    assert busy_seconds(events, 4.0) == pytest.approx(0.5 + 1.5 + 0.5)


def test_a_device_that_did_nothing_was_not_busy() -> None:
    assert busy_seconds([build_event(0.0, 1.0, "CPU")], 1.0) == 0.0
