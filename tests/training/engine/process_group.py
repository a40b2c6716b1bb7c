"""Groups of processes on this machine that compute together; they meet through a file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT = timedelta(seconds=60)


def run_group(
    work: Callable[..., Any],
    num_ranks: int,
    folder: Path,
    *arguments: Any,
    start: Literal["spawn", "fork"] = "spawn",
) -> list[Any]:
    """Let each of some processes do `work(rank, *arguments)`; return what each returned, plain values and tensors.

    `folder` is the group's own. A `fork` is quick; the process that is forked must have no threads.
    """
    mp.start_processes(  # type: ignore[attr-defined, no-untyped-call]
        run_rank, args=(num_ranks, folder, work, *arguments), nprocs=num_ranks, start_method=start
    )
    return [read_result(folder, rank) for rank in range(num_ranks)]


def run_rank(rank: int, num_ranks: int, folder: Path, work: Callable[..., Any], *arguments: Any) -> None:
    """Be one process of a group."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=num_ranks, timeout=TIMEOUT
    )
    try:
        torch.save(work(rank, *arguments), folder / f"{rank}.pt")
        # gloo aborts a process whose peer leaves in mid-exchange; one that died is not waited for.
        with contextlib.suppress(RuntimeError):
            dist.barrier()
    finally:
        dist.destroy_process_group()


def read_result(folder: Path, rank: int) -> Any:
    """Read what a process of a group returned."""
    return torch.load(folder / f"{rank}.pt", weights_only=True)
