"""Reports of a run while it trains: progress bar, curves of the tracker, Prometheus, validation on held-out people."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from fusionray.data.decoding import CropDecoder
from fusionray.data.shard_readers import CorruptionTracker
from fusionray.ray_cluster.progress import ProgressHandle
from fusionray.tracking.background import BackgroundTracker
from fusionray.tracking.runs import RunTracker
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.state import agree_on_statistics
from fusionray.training.engine.step_report import StepReport
from fusionray.training.run.metrics import TrainMetrics
from fusionray.training.run.task import WorkerTask
from fusionray.training.run.validation import Validation

# Interval of progress updates: reading a loss waits for the device.
SHOW_SECONDS = 0.5


class ProgressLogger:
    """Log the progress of one rank; all ranks must call it at the same points, and rank 0 writes the curves.

    `metrics`: the newest value of each metric; `timing`: what steps and saves took lately. Checkpoints store both.
    """

    def __init__(
        self,
        task: WorkerTask,
        engine: Engine,
        decoder: CropDecoder,
        damage: CorruptionTracker,
        progress: ProgressHandle,
    ):
        self.config = task.config
        self.engine = engine
        self.damage = damage
        self.progress = progress
        self.metrics: dict[str, float] = {}
        self.timing: dict[str, float] = {}
        self.shown = 0.0
        self.warned: set[str] = set()
        self.logged = False
        self.ray_metrics = TrainMetrics(task.config.run.name, engine.rank)
        self.tracker = (
            BackgroundTracker(RunTracker(task.tracking_uri, task.tracking_run, once=True)) if engine.rank == 0 else None
        )
        self.validation = Validation(
            task.config,
            task.manifest,
            decoder,
            engine.device,
            progress.log,
            dependencies=task.dependencies,
            group=engine.host_group,
        )

    def flush(self) -> None:
        """Wait until what was logged is stored.

        Raises: TrackerFailed.
        """
        if self.tracker is not None:
            self.tracker.flush()

    def close(self) -> None:
        """Store what was logged; nothing may be logged afterwards.

        Raises: TrackerFailed.
        """
        if self.tracker is not None:
            self.tracker.close()

    def log_line(self, line: str) -> None:
        """Show the user a line with the name of the run."""
        self.progress.log(f"train {self.config.run.name}: {line}")

    def warn_once(self, topic: str, line: str | None) -> None:
        """Show the first line about a topic; ignore later ones, and None."""
        if line and topic not in self.warned and self.tracker is not None:
            self.warned.add(topic)
            self.log_line(line)

    def record_step(self, report: StepReport, before: int) -> None:
        """Update the progress; log and validate if that is due. `before`: images seen before the step."""
        budget, images = self.config.budget, self.engine.images_seen
        for line in self.engine.notes:
            self.log_line(f"worker {self.engine.rank}: {line}")
        self.engine.notes.clear()
        for complaint in self.damage.drain_warnings():
            self.log_line(f"worker {self.engine.rank}: {complaint}; rows of other files replace its rows")
        if self.tracker is not None and time.monotonic() - self.shown > SHOW_SECONDS:
            self.shown = time.monotonic()
            self.progress.set_completed(images, report.losses)
        if crossed(before, images, budget.log_every_images):
            self.log(report, self.count_replaced())
        # After the last step, the worker runs the final validation.
        if crossed(before, images, budget.validate_every_images) and images < budget.images:
            self.evaluate(final=False)

    def count_replaced(self) -> int:
        """Count the replaced rows of damaged files since this start, over all ranks."""
        rows = torch.tensor(self.damage.replaced_rows)
        if self.engine.host_group is not None:
            dist.all_reduce(rows, group=self.engine.host_group)
        return int(rows)

    def log(self, report: StepReport, replaced_rows: int) -> None:
        """Log metrics of the steps since the last entry; warn once if communication or data takes too long."""
        engine = self.engine
        times = engine.step_timer.take() if engine.step_timer.num_steps else None
        if times is not None:
            self.ray_metrics.set_times(times)
        if self.tracker is None:
            return
        found = {f"loss_{name}": value for name, value in report.losses.items()}
        extra = {f"lr_{name}": value for name, value in report.learning_rates.items()}
        extra |= {f"grad_norm_{name}": value for name, value in report.grad_norms.items()}
        extra["skipped_steps"] = engine.skipped_steps
        extra["batch_size"] = engine.batch_size
        extra["num_workers"] = engine.num_ranks
        extra["replaced_rows"] = replaced_rows
        if times is not None:
            found["images_per_second"] = times.images_per_second * engine.num_ranks
            extra |= times.metrics()
            self.timing |= {**times.metrics(), "num_workers": engine.num_ranks, "global_batch": engine.global_batch}
            # The first entry includes the start of readers and kernels, so its times are not typical.
            if self.logged:
                self.warn_once("step_times", times.warning(self.config))
            self.logged = True
        self.metrics |= found
        # Metrics of validations are logged by `evaluate`, at the position where they were measured.
        self.tracker.log(engine.images_seen, {**extra, **found})
        budget = self.config.budget.images
        self.ray_metrics.set_progress(engine.images_seen, budget, report.losses, engine.skipped_steps, replaced_rows)

    def evaluate(self, *, final: bool) -> None:
        """Validate on held-out people, who are shared by the ranks, and draw a preview; all ranks must call it."""
        with self.engine.step_timer.paused():
            agree_on_statistics(self.engine)
            networks = self.engine.inference_networks()
            found, picture = self.validation.evaluate(self.engine.recipe, networks)
            if self.tracker is None:
                return
            images = self.engine.images_seen
            self.metrics |= found
            self.progress.report(images, found)
            self.tracker.log(images, found)
            if picture is not None:
                self.tracker.log_preview(images, picture, final=final)


def crossed(before: int, after: int, interval: int) -> bool:
    """Return whether a multiple of `interval` lies in (before, after]."""
    return after // interval > before // interval
