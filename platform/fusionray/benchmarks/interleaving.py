"""Comparing speeds on a machine that is not quiet: contestants take turns, and only turns of one round are compared."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

# Optimiser states, kernels and buffers exist after the first steps.
WARM_UP_STEPS = 2


@dataclass(frozen=True)
class Pace:
    """How long is measured: rounds of blocks of steps; no round begins after `until` (`time.monotonic`)."""

    rounds: int
    steps: int
    until: float = math.inf

    def goes_on(self, done: int) -> bool:
        """Tell whether there is another round after `done` ones; the first is always made."""
        return done < self.rounds and (done == 0 or time.monotonic() < self.until)


def interleave(
    contestants: Mapping[str, Callable[[], object]],
    pace: Pace,
    *,
    device: torch.device,
    warm_up: int = WARM_UP_STEPS,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Time a block of steps of each contestant in every round; returns the seconds of the blocks by round.

    A contestant is called once a step. The order turns round with every round, so that drift favours nobody.
    """
    for step in contestants.values():
        time_steps(step, warm_up, device)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    done = 0
    while pace.goes_on(done):
        for name in list(contestants)[:: 1 if done % 2 == 0 else -1]:
            seconds[name].append(time_steps(contestants[name], pace.steps, device))
        done += 1
        tick()
    return seconds


def time_steps(step: Callable[[], object], count: int, device: torch.device) -> float:
    """Return the seconds that `count` steps take, to the end of their last kernel."""
    wait_for(device)
    started = time.perf_counter()
    for _ in range(count):
        step()
    wait_for(device)
    return time.perf_counter() - started


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def divide(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Divide round by round."""
    return [above / below for above, below in zip(over, under, strict=True)]
