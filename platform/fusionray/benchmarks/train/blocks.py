"""Time blocks of a running training loop from inside, interleaved with a bare loop in the same process."""

from __future__ import annotations

import itertools
import time

from fusionray.benchmarks.interleaving import Pace, time_steps, wait_for
from fusionray.benchmarks.setup import BenchSetup
from fusionray.benchmarks.train.bare_loop import BareLoop
from fusionray.training.engine.engine import Engine
from fusionray.training.timing.profiler import StepProfiler


class BlockTimer:
    """Replace a worker's profiler, which the loop calls at the end of each step. Does not import Ray.

    After every block of the real loop, the bare loop takes as many steps while the real one waits. Both are at the same
    step of their run, so that lazy phases fall on the same steps. The first block of both is a warm-up.
    """

    def __init__(self, profiler: StepProfiler, engine: Engine, setup: BenchSetup, pace: Pace) -> None:
        self.profiler = profiler
        self.engine = engine
        self.pace = pace
        loop = BareLoop(setup.build_recipe(), engine)
        batches = itertools.cycle(setup.draw_batches(engine.local_batch_images))
        self.bare_step = lambda: loop.step(next(batches))
        self.real: list[float] = []
        self.bare: list[float] = []
        self.num_steps = 0
        self.num_blocks = 0
        self.started = time.perf_counter()

    def step(self) -> None:
        """Count a step; after the last one of a block, run the bare loop."""
        self.profiler.step()
        self.num_steps += 1
        if self.num_steps % self.pace.steps:
            return
        with self.engine.step_timer.paused():
            wait_for(self.engine.device)
            real = time.perf_counter() - self.started
            bare = time_steps(self.bare_step, self.pace.steps, self.engine.device)
        if self.num_blocks:
            self.real.append(real)
            self.bare.append(bare)
        self.num_blocks += 1
        self.started = time.perf_counter()

    def close(self) -> None:
        """Close the replaced profiler."""
        self.profiler.close()
