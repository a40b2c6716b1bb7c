"""What groups of processes do with checkpoints; forked from the process of checkpoint_children."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from fusionray.checkpoint.reader import agree_newest, load_into
from fusionray.checkpoint.writer import CheckpointWriter
from fusionray.errors import CheckpointFailed, CheckpointMissing, FusionRayError
from tests.checkpoint.children import fork, number_in_newest, save, steady_state
from tests.checkpoint.states import blank_state, describe, plain_state
from tests.support.full_disk import full_disk
from tests.training.engine.process_group import read_result, run_group, run_rank

SHARDED = {"rows": (5, 3), "one_row": (1, 4), "columns": (3, 6), "copied": (4, 2)}


def save_and_load_in_groups(folder: Path) -> dict[str, Any]:
    """Save on two ranks, load on two and on three; a rank of each group fails on purpose at the end."""

    results: dict[str, Any] = {}
    for name, num_ranks in (("save", 2), ("load2", 2), ("load3", 3)):
        group = folder / name
        group.mkdir()
        work = save_in_group if name == "save" else load_in_group
        results[name] = run_group(work, num_ranks, group, num_ranks, folder / "run", start="fork")
    return results


def group_state(rank: int, num_ranks: int, number: int, *, blank: bool = False) -> dict[str, Tensor]:
    """Build a state of plain tensors, shards over all ranks, and tensors that one rank alone holds."""
    mesh = init_device_mesh("cpu", (num_ranks,))
    state = blank_state() if blank else plain_state(number)
    for name, value in whole_tensors(number).items():
        if name.startswith("alone"):
            if rank == int(name.removeprefix("alone")) % num_ranks:
                state[name] = torch.zeros_like(value) if blank else value
        else:
            placement = {"columns": Shard(1), "copied": Replicate()}.get(name, Shard(0))
            filled = torch.zeros_like(value) if blank else value
            state[name] = distribute_tensor(filled, mesh, [placement])
    return state


def whole_tensors(number: int) -> dict[str, Tensor]:
    """Build what the shards and the lonely tensors are parts of."""
    generator = torch.Generator().manual_seed(1000 + number)
    found = {name: torch.randn(shape, generator=generator) for name, shape in SHARDED.items()}
    return found | {f"alone{index}": torch.randn(3, generator=generator) for index in range(4)}


def save_in_group(rank: int, num_ranks: int, run: Path) -> dict[str, Any]:
    writer = CheckpointWriter(str(run), rank=rank, num_ranks=num_ranks, keep=2)
    state = group_state(rank, num_ranks, 1)
    writer.begin(state, describe(1))
    # Training goes on at once, and its own collectives with it.
    for value in state.values():
        value.zero_()
    dist.all_reduce(torch.ones(1))
    first = writer.wait()
    grown = {**group_state(rank, num_ranks, 2), **({"late": torch.arange(3)} if rank == 1 else {})}
    writer.begin(grown, describe(2))
    second = writer.wait()
    fault = ""
    with full_disk(64) if rank == 1 else contextlib.nullcontext():
        writer.begin(grown, describe(3))
        try:
            writer.close()
        except CheckpointFailed as error:
            fault = str(error)
    return {"folders": [first, second], "fault": fault}


def load_in_group(rank: int, num_ranks: int, run: Path) -> dict[str, Any]:
    newest = agree_newest(str(run))
    assert newest is not None
    targets = {**group_state(rank, num_ranks, 2, blank=True)}
    misfit = fault_of(newest, targets)
    if rank == num_ranks - 1:
        targets["late"] = torch.zeros(3, dtype=torch.int64)
    load_into(newest, targets)
    loaded = {name: gather_whole(value) for name, value in targets.items()}
    wrong = {**targets, "late": torch.zeros(2, dtype=torch.int64)} if rank == num_ranks - 1 else targets
    return {"newest": newest, "loaded": loaded, "misfit": misfit, "wrong": fault_of(newest, wrong)}


def gather_whole(value: Tensor) -> Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def fault_of(folder: str, targets: Mapping[str, Tensor]) -> str:
    """Say why a checkpoint cannot be loaded into some targets."""
    try:
        load_into(folder, targets)
    except CheckpointMissing as error:
        return str(error)
    return ""


def lose_a_rank_in_a_save(folder: Path) -> dict[str, Any]:
    """Kill rank 1 while it saves; note what the other one says, and what can be loaded."""
    run = folder / "run"
    save(run, 1)
    children = [fork(lambda rank=rank: run_rank(rank, 2, folder, save_and_die, 2, run)) for rank in range(2)]  # type: ignore[misc]
    ends = [os.waitpid(child, 0)[1] for child in children]
    return {"ends": ends, "said": read_result(folder, 0), "newest": number_in_newest(run)}


def save_and_die(rank: int, num_ranks: int, run: Path) -> str:
    writer = CheckpointWriter(str(run), rank=rank, num_ranks=num_ranks, keep=2)
    state = steady_state(2)
    writer.prepare(state)
    if rank == 1:
        threading.setprofile(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    writer.begin(state, describe(2))
    try:
        writer.close()
    except (RuntimeError, FusionRayError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
