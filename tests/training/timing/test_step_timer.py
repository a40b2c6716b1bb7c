from __future__ import annotations

import time

import pytest
import torch

from fusionray.training.timing.clocks import HostClock
from fusionray.training.timing.report import OTHER, PARTS
from fusionray.training.timing.step_timer import StepTimer, measure_union

CPU = torch.device("cpu")


class HandClock(HostClock):
    """A clock that moves only where a test moves it: the machine's load is no part of what is tested."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.asked = 0

    def now(self) -> float:  # type: ignore[override]
        """Return the seconds so far."""
        self.asked += 1
        return self.seconds

    def move(self, seconds: float) -> None:
        """Let seconds pass."""
        self.seconds += seconds


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def timer(clock: HandClock) -> StepTimer:
    timer = StepTimer(CPU)
    timer.clock = clock
    timer.restart()
    return timer


def test_the_parts_sum_to_the_wall_time_and_each_gets_its_own(timer: StepTimer, clock: HandClock) -> None:
    for _ in range(2):
        with timer.part("forward"):
            clock.move(0.25)
        clock.move(0.125)
        with timer.part("optimizer"):
            clock.move(0.0625)
        timer.end_step(8)
    summary = timer.take()
    assert summary.num_steps == 2
    assert {name: value for name, value in summary.seconds.items() if value} == {
        "forward": 0.25, "optimizer": 0.0625, OTHER: 0.125,
    }  # fmt: skip
    assert summary.step_seconds * 2 == clock.seconds
    assert sum(summary.shares.values()) == pytest.approx(1)
    assert summary.images_per_second == pytest.approx(16 / clock.seconds)


def test_on_a_host_the_parts_sum_to_the_wall_time_of_its_clock() -> None:
    timer = StepTimer(CPU)
    before = time.perf_counter()
    timer.restart()
    after = time.perf_counter()
    with timer.part("forward"):
        time.sleep(0.02)
    with timer.part("optimizer"):
        time.sleep(0.005)
    least = time.perf_counter() - after
    timer.end_step(8)
    most = time.perf_counter() - before
    seconds = timer.take().seconds
    assert least <= sum(seconds.values()) <= most
    assert seconds["forward"] >= 0.02
    assert seconds["optimizer"] >= 0.005


def test_the_time_of_an_inner_part_is_taken_from_the_outer_one(timer: StepTimer, clock: HandClock) -> None:
    with timer.part("backward"):
        with timer.part("communication"):
            clock.move(0.5)
        clock.move(0.25)
    timer.end_step(1)
    seconds = timer.take().seconds
    assert (seconds["communication"], seconds["backward"]) == (0.5, 0.25)


def test_a_part_ends_where_an_error_leaves_it() -> None:
    timer = StepTimer(CPU)
    with pytest.raises(RuntimeError, match="memory"), timer.part("forward"):
        raise RuntimeError("out of memory")
    assert timer.stack == [OTHER]


def test_what_is_paused_belongs_to_no_step(timer: StepTimer, clock: HandClock) -> None:
    with timer.part("forward"):
        clock.move(0.25)
    with timer.paused():
        clock.move(4)
    timer.end_step(4)
    summary = timer.take()
    assert summary.step_seconds == 0.25
    assert "paused" not in summary.seconds


def test_what_came_before_a_restart_belongs_to_no_step(timer: StepTimer, clock: HandClock) -> None:
    with timer.part("forward"):
        clock.move(4)
    timer.restart()
    clock.move(0.25)
    timer.end_step(1)
    assert timer.take().step_seconds == 0.25


def test_overlapping_communication_is_counted_apart_and_once(timer: StepTimer, clock: HandClock) -> None:
    with timer.part("backward"):
        first, second = timer.overlapped_span("communication"), timer.overlapped_span("communication")
        clock.move(0.25)
        first()
        second()
        clock.move(0.25)
    timer.end_step(1)
    summary = timer.take()
    assert summary.seconds["communication"] == 0
    assert summary.overlapped["communication"] == 0.25
    assert sum(summary.seconds.values()) == summary.step_seconds == 0.5
    assert summary.total_communication_share == pytest.approx(0.5)


def test_seconds_reported_by_others_are_added_to_the_step_they_fall_into() -> None:
    timer = StepTimer(CPU)
    for _ in range(2):
        timer.add("communication", 0.5)
        timer.end_step(1)
    summary = timer.take()
    assert summary.overlapped == {"communication": pytest.approx(0.5)}
    assert summary.total_communication_share == 1  # more than there is does not become more than all
    assert summary.metrics()["time_overlapped_communication_ms"] == pytest.approx(500)


def test_taking_begins_anew_and_an_empty_timer_says_so() -> None:
    timer = StepTimer(CPU)
    timer.end_step(1)
    timer.take()
    with pytest.raises(ValueError, match="no step has ended"):
        timer.take()


def test_the_metrics_name_every_part() -> None:
    timer = StepTimer(CPU)
    timer.end_step(1)
    metrics = timer.take().metrics()
    for name in (*PARTS, OTHER):
        share = "exposed_communication_share" if name == "communication" else f"share_{name}"
        assert {f"time_{name}_ms", share} <= metrics.keys()
    assert metrics["device_memory_gib"] > 0.01
    assert {"images_per_second", "total_communication_share", "time_step_ms"} <= metrics.keys()


def test_a_part_costs_two_time_stamps(timer: StepTimer, clock: HandClock) -> None:
    before = clock.asked
    for _ in range(10):
        with timer.part("forward"):
            pass
    assert clock.asked == before + 20


def test_annotated_parts_appear_in_a_profile() -> None:
    timer = StepTimer(CPU, annotate=True)
    with torch.profiler.profile() as recorded, timer.part("forward"):
        torch.ones(2) + 1
    assert "step.forward" in {event.key for event in recorded.key_averages()}


def test_the_union_of_spans_counts_every_moment_once() -> None:
    assert measure_union([(0, 2), (1, 3), (5, 6), (5.5, 5.6)]) == pytest.approx(4)
    assert measure_union([]) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_parts_sum_to_the_time_line_of_the_device() -> None:
    device = torch.device("cuda")
    timer = StepTimer(device)
    square = torch.randn(2048, 2048, device=device)
    timer.end_step(0)
    timer.take()
    for _ in range(3):
        with timer.part("forward"):
            for _ in range(20):
                square = square @ square / 100
        end = timer.overlapped_span("communication")
        with timer.part("data_wait"):
            time.sleep(0.01)  # on the device's time line only what is left of it when the products are done
        end()
        timer.end_step(4)
    summary = timer.take()
    assert summary.num_steps == 3
    assert summary.seconds["forward"] > 0
    assert sum(summary.seconds.values()) == pytest.approx(summary.step_seconds)
    assert summary.overlapped["communication"] > 0
    assert summary.memory_gib > 0


def test_the_spread_is_that_of_the_own_work_and_rare_long_steps_are_no_noise(
    timer: StepTimer, clock: HandClock
) -> None:
    for number in range(64):
        with timer.part("data_wait"):
            clock.move(number % 7)
        with timer.part("backward"):
            # Half of the steps are a tenth longer; each sixteenth has a penalty besides.
            clock.move(1.0 + 0.1 * (number % 2) + 5.0 * (number % 16 == 15))
        with timer.part("communication"):
            clock.move(number % 3)
        timer.end_step(8)
    assert timer.take().own_spread == pytest.approx(0.1 / 1.349 / 1.05, rel=0.05)
    with timer.part("forward"):
        clock.move(1.0)
    timer.end_step(8)
    assert timer.take().own_spread == 0
