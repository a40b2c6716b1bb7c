"""Two workers against one: processes with one thread each, bound to one core each, without Ray."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.interleaving import Pace, divide, time_steps
from fusionray.benchmarks.setup import BenchSetup, TrainBenchConfig, build_setup
from fusionray.benchmarks.train.engine_parts import parts_in_ms, stepper
from fusionray.hardware.affinity import bind_worker

NUM_RANKS = 2
CPU = torch.device("cpu")
TIMEOUT = timedelta(minutes=5)


def measure_scaling(bench: TrainBenchConfig, device: torch.device, pace: Pace, tick: Callable[[], None]) -> Findings:
    """Compare two workers that share a global batch with one that computes all of it, and with two independent ones."""
    del device, tick  # the processes draw no bar
    if len(os.sched_getaffinity(0)) < NUM_RANKS:
        reason = "two workers with a core each need two cores"
        return Findings(missing=dict.fromkeys(("scaling_2", "ceiling_2", "communication_share"), reason))
    setup = build_setup(bench, bench.engine_preset, CPU, own_optimizers=True)
    with TemporaryDirectory(prefix="fusionray-scaling-") as folder:
        spawn(run_rank, args=(setup, bench.scaling_batch, pace, folder), nprocs=NUM_RANKS)  # type: ignore[no-untyped-call]
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text())
    seconds = found["seconds"]
    rate = bench.scaling_batch * pace.steps / min(seconds["single"])
    return Findings(
        values={
            "scaling_2": divide(seconds["single"], seconds["combined"]),
            "ceiling_2": divide(seconds["single"], seconds["independent"]),
            "communication_share": [found["communication_share"]],
        },
        breakdowns={"two workers, one thread each": found["ledger"]},
        notes=[
            f"scaling: {bench.engine_preset}, global batch {bench.scaling_batch}, gloo, one thread a worker; one "
            f"worker {rate:.1f} images/s at best; {found['placement']}"
        ],
    )


def run_rank(rank: int, setup: BenchSetup, images: int, pace: Pace, folder: str) -> None:
    """Run one of the two workers; rank 0 writes the results."""
    placement = bind_worker(rank, NUM_RANKS, CPU, threads=1)
    # Built before the process group, so that these engines are not distributed.
    single = setup.build_engine(global_batch=images, batch_size=None)
    independent = setup.build_engine(global_batch=images // NUM_RANKS, batch_size=None)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=NUM_RANKS, timeout=TIMEOUT
    )
    try:
        combined = setup.build_engine(global_batch=images, batch_size=None)
        whole = setup.draw_batches(images)
        half = images // NUM_RANKS
        share = [batch.map(lambda value: value[rank * half : (rank + 1) * half]) for batch in whole]
        candidates = {
            "single": stepper(single, whole) if rank == 0 else None,
            "combined": stepper(combined, share),
            "independent": stepper(independent, share),
        }
        seconds = interleave_ranks(candidates, pace)
        summary = combined.step_timer.take()
        if rank == 0:
            found = {
                "seconds": seconds,
                "communication_share": summary.total_communication_share,
                "ledger": parts_in_ms(summary),
                "placement": f"worker 0 on {placement.reason}",
            }
            (Path(folder) / "found.json").write_text(json.dumps(found))
    finally:
        dist.destroy_process_group()


def interleave_ranks(candidates: dict[str, Callable[[], object] | None], pace: Pace) -> dict[str, list[float]]:
    """Time blocks from barrier to barrier, as `interleave` does; a rank without a candidate waits."""
    for step in candidates.values():
        if step is not None:
            time_steps(step, 1, CPU)
        dist.barrier()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    done = 0
    while agree(pace.goes_on(done)):
        for name in list(candidates)[:: 1 if done % 2 == 0 else -1]:
            seconds[name].append(time_steps(block(candidates[name], pace.steps), 1, CPU))
        done += 1
    return seconds


def block(step: Callable[[], object] | None, steps: int) -> Callable[[], object]:
    """Return a function that takes some steps and waits until all ranks have taken theirs."""

    def run() -> None:
        for _ in range(steps if step is not None else 0):
            assert step is not None
            step()
        dist.barrier()

    return run


def agree(mine: bool) -> bool:
    """Use rank 0's decision on every rank, because clocks differ."""
    decision = torch.tensor(float(mine))
    dist.broadcast(decision, src=0)
    return bool(decision)
