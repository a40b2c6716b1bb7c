"""Items about one rank of a process group, and about checkpoints of a device that are cut off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fusionray.benchmarks.gpu_agenda.agenda import Workplace
from fusionray.benchmarks.gpu_agenda.engine_items import build_stepper, load_setup
from fusionray.checkpoint.info import CheckpointInfo, find_checkpoint, list_checkpoints
from fusionray.checkpoint.reader import load_tensors
from fusionray.checkpoint.writer import CheckpointWriter
from fusionray.training.config import ParallelConfig
from fusionray.training.engine.parallel.ddp import DDP
from fusionray.training.engine.state import counters, state_tensors

STEPS, POISONED = 8, 4
# Each process is killed a little longer after its second save.
KILLS, SAVES, KILL_SECONDS = 5, 2, 0.17
SAVER = f"import sys; from {__name__} import save_for_ever; save_for_ever(*sys.argv[1:])"


def exchange_compressed(place: Workplace, compression: str) -> dict[str, Any]:
    """Exchange gradients of one rank over NCCL, infinite in one step; compare each with those without exchange."""
    device = torch.device(place.device)
    with TemporaryDirectory() as folder:
        dist.init_process_group(
            "nccl" if place.device == "cuda" else "gloo", init_method=f"file://{folder}/group", rank=0, world_size=1
        )
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 32, 3), nn.GELU(), nn.Conv2d(32, 64, 3)).to(device)
        wrapped = DDP(network, ParallelConfig.model_validate({"compression": compression}), device, static=False)
        errors = []
        for number in range(STEPS):
            picture = torch.randn(4, 3, 32, 32, device=device)
            if number == POISONED:
                picture[0, 0, 0, 0] = float("inf")
            wanted = torch.autograd.grad(network(picture).square().mean(), list(network.parameters()))
            network.zero_grad()
            wrapped.module(picture).square().mean().backward()
            if number == POISONED:
                wrapped.reset()
                continue
            pairs = zip(network.parameters(), wanted, strict=True)
            errors.append(max(float((each.grad - want).norm() / want.norm()) for each, want in pairs))  # type: ignore[operator]
        dist.destroy_process_group()
    return {"errors": errors, "finite_after_infinite_step": all(error < float("inf") for error in errors[POISONED:])}


def save_for_ever(folder: str, device: str) -> None:
    """Train, and save after every step, until killed."""
    setup = load_setup("tiny-64", device)
    engine = setup.build_engine(compile=False)
    step = build_stepper(engine, setup)
    writer = CheckpointWriter(folder, keep=3)
    while True:
        step()
        found = CheckpointInfo(
            config=setup.config.model_dump(mode="json"),
            num_people=2,
            data_digest="",
            images_seen=engine.images_seen,
            seconds=0.0,
            metrics={},
            counters=counters(engine),
        )
        writer.begin(state_tensors(engine), found)


def kill_in_saves(place: Workplace) -> dict[str, Any]:
    """Kill a process that saves all the time, at several moments after a save; what is left has to be whole.

    Raises: LookupError if it saves nothing in its time; CheckpointMissing.
    """
    loaded = []
    for number in range(KILLS):
        folder = place.folder / "kill-in-saves" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", SAVER, str(folder), place.device]
        process = subprocess.Popen(command)  # noqa: S603 - our own command
        try:
            wait_for_saves(folder, process, time.monotonic() + place.seconds / KILLS)
            time.sleep(KILL_SECONDS * number)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        newest = find_checkpoint(str(folder))
        loaded.append({"checkpoint": Path(newest).name, "tensors": len(load_tensors(newest))})
    return {"kills": KILLS, "loaded": loaded}


def wait_for_saves(folder: Path, process: subprocess.Popen[bytes], until: float) -> None:
    """Wait for two checkpoints.

    Raises: LookupError if they do not come.
    """
    while len(list_checkpoints(str(folder))) < SAVES:
        if process.poll() is not None or time.monotonic() > until:
            raise LookupError("the process that saves made no two checkpoints in its time")
        time.sleep(0.05)
