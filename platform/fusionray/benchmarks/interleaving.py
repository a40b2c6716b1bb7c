"""Compare speeds on a noisy machine: candidates alternate, and only measurements of one round are compared."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

# Optimizer states, kernels and buffers exist after the first steps.
WARM_UP_STEPS = 2


@dataclass(frozen=True)
class Pace:
    """Length of a measurement: rounds of blocks of steps; no round starts after `until` (`time.monotonic`)."""

    rounds: int
    steps: int
    until: float = math.inf

    def goes_on(self, done: int) -> bool:
        """Tell whether there is another round after `done` rounds; the first always runs."""
        return done < self.rounds and (done == 0 or time.monotonic() < self.until)


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    pace: Pace,
    *,
    device: torch.device,
    warm_up: int = WARM_UP_STEPS,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Time a block of steps of each candidate in every round; return the seconds of the blocks by round.

    A candidate is a function that takes one step. The order is reversed every round, so that drift affects all alike.
    """
    for step in candidates.values():
        time_steps(step, warm_up, device)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    done = 0
    while pace.goes_on(done):
        for name in list(candidates)[:: 1 if done % 2 == 0 else -1]:
            seconds[name].append(time_steps(candidates[name], pace.steps, device))
        done += 1
        tick()
    return seconds


def time_steps(step: Callable[[], object], count: int, device: torch.device) -> float:
    """Return the seconds of `count` steps, to the end of their last kernel."""
    wait_for(device)
    started = time.perf_counter()
    for _ in range(count):
        step()
    wait_for(device)
    return time.perf_counter() - started


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def divide(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Divide round by round."""
    return [above / below for above, below in zip(over, under, strict=True)]
