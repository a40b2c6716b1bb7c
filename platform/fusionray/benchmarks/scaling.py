"""Two workers against one: processes of one thread each, bound to a core each, without Ray."""

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

from fusionray.benchmarks.engine_parts import parts_in_ms, stepper
from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.interleaving import Pace, divide, time_steps
from fusionray.benchmarks.setup import BenchSetup, TrainBenchConfig, build_setup
from fusionray.hardware.affinity import bind_worker

NUM_RANKS = 2
CPU = torch.device("cpu")
TIMEOUT = timedelta(minutes=5)


def measure_scaling(bench: TrainBenchConfig, device: torch.device, pace: Pace, tick: Callable[[], None]) -> Findings:
    """Compare two workers that share a global batch with one that computes all of it, and with two strangers."""
    del device, tick  # the processes draw no bar
    if len(os.sched_getaffinity(0)) < NUM_RANKS:
        reason = "two workers with a core each need two cores"
        return Findings(missing=dict.fromkeys(("scaling_2", "ceiling_2", "communication_share"), reason))
    subject = build_setup(bench, bench.engine_preset, CPU)
    with TemporaryDirectory(prefix="fusionray-scaling-") as folder:
        spawn(run_rank, args=(subject, bench.scaling_batch, pace, folder), nprocs=NUM_RANKS)  # type: ignore[no-untyped-call]
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text())
    seconds = found["seconds"]
    rate = bench.scaling_batch * pace.steps / min(seconds["alone"])
    return Findings(
        values={
            "scaling_2": divide(seconds["alone"], seconds["together"]),
            "ceiling_2": divide(seconds["alone"], seconds["apart"]),
            "communication_share": [found["communication_share"]],
        },
        ledgers={"two workers, one thread each": found["ledger"]},
        notes=[
            f"scaling: {bench.engine_preset}, global batch {bench.scaling_batch}, gloo, one thread a worker; one alone "
            f"{rate:.1f} images/s at best; {found['placement']}"
        ],
    )


def run_rank(rank: int, subject: BenchSetup, images: int, pace: Pace, folder: str) -> None:
    """Be one of the two workers; rank 0 writes what was found."""
    placement = bind_worker(rank, NUM_RANKS, CPU, threads=1)
    # Built before there is a group: these know of no other worker.
    alone = subject.build_engine(global_batch=images, batch_size=None)
    apart = subject.build_engine(global_batch=images // NUM_RANKS, batch_size=None)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=NUM_RANKS, timeout=TIMEOUT
    )
    try:
        together = subject.build_engine(global_batch=images, batch_size=None)
        whole = subject.draw_batches(images)
        half = images // NUM_RANKS
        share = [batch.map(lambda value: value[rank * half : (rank + 1) * half]) for batch in whole]
        contestants = {
            "alone": stepper(alone, whole) if rank == 0 else None,
            "together": stepper(together, share),
            "apart": stepper(apart, share),
        }
        seconds = take_turns_together(contestants, pace)
        summary = together.ledger.take()
        if rank == 0:
            found = {
                "seconds": seconds,
                "communication_share": summary.communication_share,
                "ledger": parts_in_ms(summary),
                "placement": f"worker 0 on {placement.reason}",
            }
            (Path(folder) / "found.json").write_text(json.dumps(found))
    finally:
        dist.destroy_process_group()


def take_turns_together(contestants: dict[str, Callable[[], object] | None], pace: Pace) -> dict[str, list[float]]:
    """Time blocks from barrier to barrier, as `turns.take_turns`; a worker without a contestant sleeps meanwhile."""
    for step in contestants.values():
        if step is not None:
            time_steps(step, 1, CPU)
        dist.barrier()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    done = 0
    while agree(pace.goes_on(done)):
        for name in list(contestants)[:: 1 if done % 2 == 0 else -1]:
            seconds[name].append(time_steps(block(contestants[name], pace.steps), 1, CPU))
        done += 1
    return seconds


def block(step: Callable[[], object] | None, steps: int) -> Callable[[], object]:
    """Return a function that takes some steps; it ends when all workers have taken theirs."""

    def run() -> None:
        for _ in range(steps if step is not None else 0):
            assert step is not None
            step()
        dist.barrier()

    return run


def agree(mine: bool) -> bool:
    """Take rank 0's decision: clocks differ."""
    decision = torch.tensor(float(mine))
    dist.broadcast(decision, src=0)
    return bool(decision)
