"""What the machine itself can do, measured in a second: what figures of two machines are compared by."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

import numpy as np

SIDE = 1024
COPIED_BYTES = 2**26
SECONDS = 0.25


@lru_cache(maxsize=1)
def measure_machine() -> dict[str, list[float]]:
    """Measure the machine once a process; the values by the keys of machine_keys.yaml."""
    left, right = (np.random.default_rng(seed).random((SIDE, SIDE), dtype=np.float32) for seed in (0, 1))
    source, target = np.ones(COPIED_BYTES, np.uint8), np.empty(COPIED_BYTES, np.uint8)
    return {
        "machine_gflops": [2 * SIDE**3 / 1e9 / time_best(lambda: np.matmul(left, right))],
        # Read once and written once.
        "machine_copy_gbytes_per_second": [2 * COPIED_BYTES / 1e9 / time_best(lambda: np.copyto(target, source))],
    }


def time_best(work: Callable[[], object]) -> float:
    """Return the shortest time of some repetitions, in seconds."""
    work()
    times = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
