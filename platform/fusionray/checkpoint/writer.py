"""Asynchronous checkpoints: the state is copied, and a thread writes the copy while training continues."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fusionray.checkpoint.info import INFO_NAME, CheckpointInfo, check_whole, checkpoint_name, is_owner, retain
from fusionray.checkpoint.staging import Staging
from fusionray.errors import CheckpointFailed, CheckpointMissing
from fusionray.storage import filesystem as storage

GROUP_TIMEOUT = timedelta(minutes=10)
# The writing thread has a lower priority, but not the lowest: if it starves with Python's lock, training waits.
NICENESS = 5
TAKEN_OVER = "the run was started again meanwhile, and goes on there"
Value = TypeVar("Value")


class CheckpointWriter:
    """Save the state of all ranks, one checkpoint at a time; every rank has one and calls it at the same points.

    The `keep` newest checkpoints are kept, and the best one by `best_metric` of `CheckpointInfo.metrics`.
    `fencing_token`: from `take_fencing_token` at the start of the run; after a later start nothing is published.
    """

    def __init__(
        self,
        run_folder: str,
        *,
        rank: int = 0,
        num_ranks: int = 1,
        keep: int,
        best_metric: str | None = None,
        best_mode: Literal["highest", "lowest"] = "highest",
        fencing_token: str = "",
    ) -> None:
        self.run_folder = run_folder
        self.rank = rank
        self.num_ranks = num_ranks
        self.keep = keep
        self.best_metric = best_metric
        self.best_mode = best_mode
        self.fencing_token = fencing_token
        # A separate group: collectives of the writing thread must not mix with those of the training thread.
        self.group = dist.new_group(backend="gloo", timeout=GROUP_TIMEOUT) if num_ranks > 1 else None
        self.thread = ThreadPoolExecutor(1, "checkpoint", initializer=yield_to_training)
        self.running: Future[str] | None = None
        self.staging: Staging | None = None
        self.num_saves = 0
        # A save never overwrites files of another save, even at the same number of images.
        self.token = self.broadcast(uuid.uuid4().hex[:8])

    def prepare(self, state: Mapping[str, Tensor]) -> None:
        """Plan which rank saves what, and allocate memory; otherwise the first `begin` does it, and takes longer."""
        changed = torch.tensor(int(self.staging is None or not self.staging.fits(state)))
        if self.group is not None:
            # All ranks plan together, even if the state of only one rank has changed.
            dist.all_reduce(changed, dist.ReduceOp.MAX, group=self.group)
        if changed:
            self.staging = None
            self.staging = Staging(state, self.group)

    def begin(self, state: Mapping[str, Tensor], info: CheckpointInfo) -> None:
        """Copy this rank's part of the state, start to write it, and return.

        Waits for the previous save. The state may contain plain tensors that are equal on all ranks, DTensors, and
        tensors that exist on one rank only. `info` of rank 0 is stored; `images_seen` names the folder.

        Raises: CheckpointFailed if the previous save failed.
        """
        self.wait()
        self.prepare(state)
        assert self.staging is not None
        self.staging.take(state)
        self.num_saves += 1
        self.running = self.thread.submit(self.save, info, f"{self.token}-{self.num_saves}")

    def finished(self) -> bool:
        """Return whether no save is in progress; `wait` then returns at once."""
        return self.running is None or self.running.done()

    def wait(self) -> str | None:
        """Wait for the save in progress; return the folder of a checkpoint that is new since the last call, or None.

        Raises: CheckpointFailed if it could not be written; earlier checkpoints are intact.
        """
        running, self.running = self.running, None
        return None if running is None else running.result()

    def close(self) -> None:
        """Wait for the last save, then release thread and memory; call it before the process group is destroyed.

        Raises: as `wait`.
        """
        try:
            self.wait()
        finally:
            self.thread.shutdown()
            self.staging = None

    def save(self, info: CheckpointInfo, save_name: str) -> str:
        """Write this rank's data file; after all ranks, rank 0 publishes the checkpoint. Returns its folder."""
        assert self.staging is not None
        folder = storage.join(self.run_folder, checkpoint_name(info.images_seen))
        location = storage.join(folder, f"{save_name}-{self.rank:05d}.bin")
        part = RankPart(
            location.rsplit("/", 1)[-1], fault=f"rank {self.rank} failed with an unexpected error; see its log"
        )
        try:
            part.length, part.entries = self.staging.write(location)
            part.fault = ""
        except OSError as error:
            part.fault = f"rank {self.rank}: {one_line(error)}"
        finally:
            # Always: the other ranks wait for this rank's answer.
            fault, published = self.settle(folder, info, save_name, part)
        if fault:
            if not published:
                # If it cannot be deleted now, the next save deletes it.
                with contextlib.suppress(OSError):
                    storage.delete(location)
            raise CheckpointFailed(f"{folder}: {explain(fault, published=published)}")
        return folder

    def settle(self, folder: str, info: CheckpointInfo, save_name: str, part: RankPart) -> tuple[str, bool]:
        """Publish the parts of all ranks; return on all ranks the fault, "" if none, and whether it is published."""
        parts = [part] * self.num_ranks
        if self.group is not None:
            dist.gather_object(part, parts if self.rank == 0 else None, group=self.group)
        outcome = ("rank 0 failed with an unexpected error; see its log", False)
        try:
            if self.rank == 0:
                outcome = self.publish(folder, info, save_name, parts)
        finally:
            outcome = self.broadcast(outcome)
        return outcome

    def publish(self, folder: str, info: CheckpointInfo, save_name: str, parts: list[RankPart]) -> tuple[str, bool]:
        """Write table and description of a checkpoint once its data files exist, then delete older checkpoints."""
        fault = next((part.fault for part in parts if part.fault), "")
        if fault:
            return fault, False
        table_name = f"{save_name}.tensors.json"
        table = json.dumps({"tensors": merge_entries(parts)}).encode()
        described = info.model_copy(
            update={
                "num_ranks": self.num_ranks,
                "files": {**{part.file: part.length for part in parts}, table_name: len(table)},
                "table": table_name,
                "table_sha256": storage.sha256_hex(table),
            }
        )
        published = False
        try:
            if self.fencing_token and not is_owner(self.run_folder, self.fencing_token):
                return TAKEN_OVER, False
            storage.write_atomic(storage.join(folder, table_name), table)
            check_whole(folder, described)
            storage.write_atomic(storage.join(folder, INFO_NAME), described.model_dump_json(indent=1).encode())
            published = True
            retain(self.run_folder, keep=self.keep, best_metric=self.best_metric, best_mode=self.best_mode)
        except OSError as error:
            return f"rank 0: {one_line(error)}", published
        except CheckpointMissing as error:
            # A part was written, but not to a place that rank 0 sees.
            what = str(error).partition(",")[0]
            return f"{what} for rank 0; run.output must lie on storage that all nodes share", published
        return "", published

    def broadcast(self, value: Value) -> Value:
        """Give all ranks the value of rank 0."""
        values = [value]
        if self.group is not None:
            dist.broadcast_object_list(values, src=0, group=self.group)
        return values[0]


@dataclass
class RankPart:
    """One rank's part of a checkpoint: its file and table entries, or its fault."""

    file: str
    fault: str
    length: int = 0
    entries: dict[str, Any] = field(default_factory=dict)


def merge_entries(parts: Sequence[RankPart]) -> dict[str, Any]:
    """Merge the entries of all ranks: a sharded tensor has a part on each rank."""
    merged: dict[str, Any] = {}
    for part in parts:
        for name, entry in part.entries.items():
            former = merged.get(name, {**entry, "parts": []})
            merged[name] = {**former, "parts": former["parts"] + entry["parts"]}
    return merged


def explain(fault: str, *, published: bool) -> str:
    """Say what became of a save that failed, and what to do."""
    if fault == TAKEN_OVER:
        return f"not saved, since {fault}; of two starts only the newer one saves, so end the other"
    failed = "older ones could not be deleted" if published else "could not be saved"
    mend = "free some space or fix the permissions, then start the same run again"
    return f"{failed} ({fault}); earlier checkpoints are intact: {mend}"


def one_line(error: OSError) -> str:
    """Return the message of a storage error on one line; object stores use several lines."""
    return " ".join(str(error).split())


def yield_to_training() -> None:
    """Lower the priority of the calling thread, on systems with priorities per thread."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
