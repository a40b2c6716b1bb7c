from __future__ import annotations

import numpy as np
import pytest

from fusionray.planning.failures import (
    FailureModel,
    best_interval,
    draw_steps,
    expected_goodput,
    simulate_goodput,
)
from fusionray.planning.scaling import StepPrediction, expected_maximum

HOUR = 3600
STEP = StepPrediction(workers=64, local_batch=32, compute_seconds=0.1, waiting_seconds=0.0, exchange_seconds=0.01)
OFTEN = FailureModel(failure_seconds=4 * HOUR, restart_seconds=300, stall_seconds=5, save_seconds=20)


def simulate(interval: float, model: FailureModel = OFTEN, failures: int = 2000) -> float:
    return simulate_goodput(model, STEP, 0.05, interval, failures=failures, seed=3)


def test_without_failures_only_the_stalls_are_lost() -> None:
    never = FailureModel(failure_seconds=1e9, restart_seconds=300, stall_seconds=5, save_seconds=20)
    assert simulate(95, never, failures=20) == pytest.approx(0.95, abs=0.001)


def test_the_simulation_agrees_with_the_formula_where_failures_are_rare() -> None:
    for interval in (100, 400, 1500):
        assert simulate(interval) == pytest.approx(expected_goodput(OFTEN, interval), abs=0.01)


def test_the_simulation_finds_no_better_interval_than_youngs() -> None:
    best = best_interval(OFTEN)
    assert best == pytest.approx((2 * 5 * 4 * HOUR) ** 0.5)
    around = {factor: simulate(best * factor) for factor in (1 / 16, 1 / 4, 1, 4, 16)}
    assert max(around, key=lambda factor: around[factor]) == 1


def test_checkpoints_are_no_closer_than_a_save_takes() -> None:
    slow = FailureModel(failure_seconds=HOUR, restart_seconds=0, stall_seconds=0.001, save_seconds=500)
    assert best_interval(slow) == 500


def test_a_save_that_is_not_whole_counts_for_nothing() -> None:
    soon, late = (
        FailureModel(failure_seconds=40 * HOUR, restart_seconds=300, stall_seconds=5, save_seconds=seconds)
        for seconds in (1, 3000)
    )
    assert simulate(3000, late) == pytest.approx(expected_goodput(late, 3000), abs=0.004)
    assert simulate(3000, soon) - simulate(3000, late) == pytest.approx(3000 / (40 * HOUR), rel=0.2)


def test_a_save_waits_for_the_one_before_it() -> None:
    slow = FailureModel(failure_seconds=1e9, restart_seconds=0, stall_seconds=0, save_seconds=100)
    assert simulate(50, slow, failures=20) == pytest.approx(0.5, abs=0.01)
    assert expected_goodput(slow, 50) == pytest.approx(0.5, abs=0.01)


def test_nothing_is_gained_where_no_checkpoint_becomes_whole() -> None:
    hopeless = FailureModel(failure_seconds=60, restart_seconds=300, stall_seconds=5, save_seconds=20)
    assert simulate(10 * HOUR, hopeless, failures=200) == 0


def test_a_step_ends_with_the_slowest_of_its_workers() -> None:
    steps = draw_steps(STEP, 0.05, np.random.default_rng(0))
    assert steps.mean() == pytest.approx(0.01 + 0.1 * (1 + 0.05 * expected_maximum(64)), rel=0.005)


def test_the_same_seed_gives_the_same_goodput() -> None:
    assert simulate(400, failures=50) == simulate(400, failures=50)
