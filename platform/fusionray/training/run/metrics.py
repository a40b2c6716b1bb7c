"""Prometheus metrics of a training. Ray exports them with the prefix `ray_fusionray_train_`, while the workers live."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ray.util.metrics import Counter

from fusionray.ray_cluster.lasting_gauge import LastingGauge
from fusionray.training.timing.report import StepTimes

GIB = 2**30
RUN = ("run",)
RANK = ("run", "rank")


class TrainMetrics:
    """Metrics of one rank of a run; what is alike on all ranks is exported by rank 0 alone."""

    def __init__(self, run: str, rank: int) -> None:
        self.run = {"run": run}
        self.rank = {"run": run, "rank": str(rank)}
        self.is_first = rank == 0
        self.step_seconds = LastingGauge("fusionray_train_step_seconds", "Mean seconds of a step of a rank.", RANK)
        self.step_share = LastingGauge(
            "fusionray_train_step_share", "Share of a step that a part takes, hidden behind no other.", (*RANK, "part")
        )
        self.communication = LastingGauge(
            "fusionray_train_communication_share",
            "Share of a step in which gradients are exchanged, hidden or not.",
            RANK,
        )
        self.speed = LastingGauge(
            "fusionray_train_images_per_second", "Images that a rank trains on in a second.", RANK
        )
        self.memory = LastingGauge(
            "fusionray_train_memory_bytes", "Peak memory of a rank, of its device if it has one.", RANK
        )
        self.images = LastingGauge("fusionray_train_images_seen", "Images of a run so far, over all ranks.", RUN)
        self.budget = LastingGauge("fusionray_train_images_budget", "Images after which a run ends.", RUN)
        self.losses = LastingGauge("fusionray_train_loss", "Newest value of a loss.", (*RUN, "loss"))
        self.skipped = LastingGauge(
            "fusionray_train_skipped_steps", "Steps skipped for gradients that were not finite.", RUN
        )
        self.replaced = LastingGauge(
            "fusionray_train_replaced_rows", "Rows of damaged files, which others replace.", RUN
        )
        self.checkpoint_time = LastingGauge(
            "fusionray_train_last_checkpoint_timestamp_seconds", "Time of the newest complete checkpoint.", RUN
        )
        self.checkpoints = Counter("fusionray_train_checkpoints", "Checkpoints by how they ended.", (*RUN, "outcome"))

    def set_times(self, times: StepTimes) -> None:
        """Set the times of the last steps of this rank."""
        self.step_seconds.set(times.step_seconds, self.rank)
        for part, share in times.shares.items():
            self.step_share.set(share, {**self.rank, "part": part})
        self.communication.set(times.total_communication_share, self.rank)
        self.speed.set(times.images_per_second, self.rank)
        self.memory.set(times.memory_gib * GIB, self.rank)

    def set_progress(self, images: int, budget: int, losses: Mapping[str, float], skipped: int, replaced: int) -> None:
        """Set what all ranks share; only rank 0 calls it."""
        self.images.set(images, self.run)
        self.budget.set(budget, self.run)
        self.skipped.set(skipped, self.run)
        self.replaced.set(replaced, self.run)
        for name, value in losses.items():
            self.losses.set(value, {**self.run, "loss": name})

    def count_checkpoint(self, *, failed: bool = False) -> None:
        """Count a checkpoint that is complete, or that could not be written; all ranks may call it."""
        if not self.is_first:
            return
        self.checkpoints.inc(1, {**self.run, "outcome": "failed" if failed else "saved"})
        if not failed:
            self.checkpoint_time.set(time.time(), self.run)
