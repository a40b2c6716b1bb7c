"""What failures and checkpoints cost: the best interval, the expected goodput, and a discrete simulation of both.

Goodput is the share of time that ends up in the result: checkpoints, restarts and work that is done again are lost.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusionray.planning.scaling import StepPrediction

Floats = NDArray[np.float64]
# Steps that are drawn with the noise of every worker; longer stretches take their sum from these.
DRAWN_STEPS = 4096


@dataclass(frozen=True)
class FailureModel:
    """`failure_seconds`: mean time to the next failure of any worker. `stall_seconds`: for which a checkpoint holds
    training up; `save_seconds`: until it is whole, so that a failure before then falls back to the one before it.
    """

    failure_seconds: float
    restart_seconds: float
    stall_seconds: float
    save_seconds: float


def best_interval(model: FailureModel) -> float:
    """Return the seconds of training between checkpoints that lose least, but no less than a save takes.

    Source: J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17 (1974).
    """
    return max(math.sqrt(2 * model.stall_seconds * model.failure_seconds), model.save_seconds)


def expected_goodput(model: FailureModel, interval: float) -> float:
    """Return the expected goodput, to first order: failures are rare compared with the interval.

    A failure loses half an interval, the save that was not whole, and the restart.
    """
    # A save waits for the one before it.
    cycle = max(interval + model.stall_seconds, model.save_seconds)
    lost = cycle / 2 + model.save_seconds + model.restart_seconds
    return max(0.0, interval / cycle * (1 - lost / (model.failure_seconds + lost)))


def simulate_goodput(
    model: FailureModel, step: StepPrediction, spread: float, interval: float, *, failures: int, seed: int
) -> float:
    """Simulate a training until so many failures have happened; returns useful step time over all time.

    Every worker has a clock of its own that fails it (exponentially), and takes a time of its own for each step.
    """
    random = np.random.default_rng(seed)
    durations = draw_steps(step, spread, random)
    mean = float(durations.mean())
    steps = max(1, round(interval / mean))
    worker_seconds = model.failure_seconds * step.workers
    clocks = [(random.exponential(worker_seconds), worker) for worker in range(step.workers)]
    heapq.heapify(clocks)
    now, useful = 0.0, 0.0
    for _ in range(failures):
        failed, worker = heapq.heappop(clocks)
        # A worker that fails during a restart delays it: there is nothing to lose yet.
        kept = count_kept(max(0.0, failed - now), steps, durations, model, random)
        useful += kept * steps * mean
        now = max(now, failed) + model.restart_seconds
        heapq.heappush(clocks, (now + random.exponential(worker_seconds), worker))
    return useful / now


def draw_steps(step: StepPrediction, spread: float, random: np.random.Generator) -> Floats:
    """Draw the seconds of steps [N]: each ends with the slowest worker, then gradients are exchanged."""
    noise = random.normal(1.0, spread, (DRAWN_STEPS, step.workers)).clip(min=0.0)
    slowest: Floats = step.compute_seconds * noise.max(axis=1)
    return slowest + step.exchange_seconds


def count_kept(life: float, steps: int, durations: Floats, model: FailureModel, random: np.random.Generator) -> int:
    """Count the checkpoints that are whole before a life of so many seconds ends."""
    deviation = math.sqrt(steps) * float(durations.std())
    # A save waits for the one before it.
    mean = max(steps * float(durations.mean()) + model.stall_seconds, model.save_seconds)
    # The copy is made at the end of a stretch; the write goes on beside the next ones.
    life -= model.save_seconds
    # By the central limit theorem the sum of many steps is normal, and so is that of many stretches: nearly all of them
    # are passed in one leap, and the last ones are drawn one by one.
    expected = max(0.0, life / mean)
    margin = 10 * math.sqrt(expected + 1)
    leap = int(max(0.0, expected - margin))
    passed = random.normal(leap * mean, math.sqrt(leap) * deviation)
    stretches = random.normal(mean, deviation, int(2 * margin) + 1).clip(min=0.0)
    return leap + int(np.searchsorted(passed + np.cumsum(stretches), life, side="right"))
