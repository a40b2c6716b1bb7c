"""Saving without waiting: the state is copied, and a thread of its own writes the copy while training goes on."""

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

from fusionray.checkpoint.info import INFO_NAME, CheckpointInfo, checkpoint_name, is_owner, retain
from fusionray.checkpoint.staging import Staging
from fusionray.errors import CheckpointFailed
from fusionray.storage import filesystem as storage

GROUP_TIMEOUT = timedelta(minutes=10)
# Training comes first, but a thread that holds Python's lock must not be starved: training would wait for it.
NICENESS = 5
Value = TypeVar("Value")


class CheckpointWriter:
    """Save the state of all ranks, one checkpoint at a time; every rank has one and calls it at the same points.

    `keep` newest checkpoints are kept, and beside them the best one by `best_metric` of `CheckpointInfo.metrics`.
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
        # A group of its own: collectives of the writing thread must not meet those of the training thread.
        self.group = dist.new_group(backend="gloo", timeout=GROUP_TIMEOUT) if num_ranks > 1 else None
        self.thread = ThreadPoolExecutor(1, "checkpoint", initializer=yield_to_training)
        self.running: Future[str] | None = None
        self.staging: Staging | None = None
        self.num_saves = 0
        # No save ever writes over a file of another, even where both are of the same number of images.
        self.token = self.broadcast(uuid.uuid4().hex[:8])

    def prepare(self, state: Mapping[str, Tensor]) -> None:
        """Plan who saves what and set the memory aside; `begin` does it when it must, which takes longer that time."""
        changed = torch.tensor(int(self.staging is None or not self.staging.fits(state)))
        if self.group is not None:
            # Planning is done together, even if the state of one rank alone has changed.
            dist.all_reduce(changed, dist.ReduceOp.MAX, group=self.group)
        if changed:
            self.staging = None
            self.staging = Staging(state, self.group)

    def begin(self, state: Mapping[str, Tensor], info: CheckpointInfo) -> None:
        """Copy this rank's share of the state, and return while it is being written.

        Waits for the save before this one. The state may hold plain tensors that are equal on all ranks, DTensors, and
        tensors that one rank alone holds. `info` counts on rank 0; `images_seen` names the folder on all.

        Raises: CheckpointFailed if the save before this one failed.
        """
        self.wait()
        self.prepare(state)
        assert self.staging is not None
        self.staging.take(state)
        self.num_saves += 1
        self.running = self.thread.submit(self.save, info, f"{self.token}-{self.num_saves}")

    def finished(self) -> bool:
        """Tell whether nothing is being saved now; `wait` then tells at once how it went."""
        return self.running is None or self.running.done()

    def wait(self) -> str | None:
        """Wait until nothing is being saved; return the checkpoint that was finished since the last call, if any.

        Raises: CheckpointFailed if it could not be written; what was saved before is intact.
        """
        running, self.running = self.running, None
        return None if running is None else running.result()

    def close(self) -> None:
        """Wait for the last save and give thread and memory back; before the process group is destroyed.

        Raises: as `wait`.
        """
        try:
            self.wait()
        finally:
            self.thread.shutdown()
            self.staging = None

    def save(self, info: CheckpointInfo, save_name: str) -> str:
        """Write this rank's data file; when all ranks have, rank 0 publishes the checkpoint. Returns its folder."""
        assert self.staging is not None
        folder = storage.join(self.run_folder, checkpoint_name(info.images_seen))
        location = storage.join(folder, f"{save_name}-{self.rank:05d}.bin")
        share = Share(location.rsplit("/", 1)[-1], fault=f"rank {self.rank} met an unforeseen error; see its log")
        try:
            share.length, share.entries = self.staging.write(location)
            share.fault = ""
        except OSError as error:
            share.fault = f"rank {self.rank}: {one_line(error)}"
        finally:
            # Come what may: the other ranks wait for this one's answer.
            fault, published = self.settle(folder, info, save_name, share)
        if fault:
            if not published:
                # What cannot be deleted now is deleted by the next save.
                with contextlib.suppress(OSError):
                    storage.delete(location)
            raise CheckpointFailed(
                f"{folder}: {'older ones could not be deleted' if published else 'could not be saved'} ({fault}); "
                "the checkpoints before it are intact: free space or mend the access, then start the same run again"
            )
        return folder

    def settle(self, folder: str, info: CheckpointInfo, save_name: str, share: Share) -> tuple[str, bool]:
        """Collect the shares of all ranks and publish them; tell all ranks what went wrong and whether it counts."""
        shares = [share] * self.num_ranks
        if self.group is not None:
            dist.gather_object(share, shares if self.rank == 0 else None, group=self.group)
        outcome = ("rank 0 met an unforeseen error; see its log", False)
        try:
            if self.rank == 0:
                outcome = self.publish(folder, info, save_name, shares)
        finally:
            outcome = self.broadcast(outcome)
        return outcome

    def publish(self, folder: str, info: CheckpointInfo, save_name: str, shares: list[Share]) -> tuple[str, bool]:
        """Write table and description of a checkpoint whose data files are all written, then delete older ones."""
        fault = next((share.fault for share in shares if share.fault), "")
        if fault:
            return fault, False
        if self.fencing_token and not is_owner(self.run_folder, self.fencing_token):
            return "the run was started again since, and goes on elsewhere", False
        table_name = f"{save_name}.tensors.json"
        table = json.dumps({"tensors": merge_entries(shares)}).encode()
        described = info.model_copy(
            update={
                "num_ranks": self.num_ranks,
                "files": {**{share.file: share.length for share in shares}, table_name: len(table)},
                "table": table_name,
                "table_sha256": storage.sha256_hex(table),
            }
        )
        published = False
        try:
            storage.write_atomic(storage.join(folder, table_name), table)
            storage.write_atomic(storage.join(folder, INFO_NAME), described.model_dump_json(indent=1).encode())
            published = True
            retain(self.run_folder, keep=self.keep, best_metric=self.best_metric, best_mode=self.best_mode)
        except OSError as error:
            return f"rank 0: {one_line(error)}", published
        return "", published

    def broadcast(self, value: Value) -> Value:
        """Give all ranks the value of rank 0."""
        values = [value]
        if self.group is not None:
            dist.broadcast_object_list(values, src=0, group=self.group)
        return values[0]


@dataclass
class Share:
    """What one rank contributed to a checkpoint: its file, and the entries of the table for it; or what went wrong."""

    file: str
    fault: str
    length: int = 0
    entries: dict[str, Any] = field(default_factory=dict)


def merge_entries(shares: Sequence[Share]) -> dict[str, Any]:
    """Join the entries of all ranks: a sharded tensor has a part on each."""
    merged: dict[str, Any] = {}
    for share in shares:
        for name, entry in share.entries.items():
            former = merged.get(name, {**entry, "parts": []})
            merged[name] = {**former, "parts": former["parts"] + entry["parts"]}
    return merged


def one_line(error: OSError) -> str:
    """Word an error of a file system; those of object stores have several lines."""
    return " ".join(str(error).split())


def yield_to_training() -> None:
    """Lower the priority of the calling thread, where threads have one of their own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
