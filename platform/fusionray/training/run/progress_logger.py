"""What is told of a run while it trains: the progress line, the tracker's curves, the looks at held-out people."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from fusionray.data.decoding import CropDecoder
from fusionray.data.reading import CorruptionTracker
from fusionray.ray_cluster.progress import ProgressHandle
from fusionray.tracking import RunTracker
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.step_report import StepReport
from fusionray.training.run.task import WorkerTask
from fusionray.training.run.validation import Validation

# How often the progress line is renewed: reading a loss waits for the device.
SHOW_SECONDS = 0.5


class ProgressLogger:
    """One rank's telling; all ranks call it at the same points, rank 0 writes.

    `metrics`: the newest figure of each name, which checkpoints keep.
    """

    def __init__(
        self, task: WorkerTask, engine: Engine, decoder: CropDecoder, damage: CorruptionTracker, board: ProgressHandle
    ):
        self.config = task.config
        self.engine = engine
        self.damage = damage
        self.board = board
        self.metrics: dict[str, float] = {}
        self.shown = 0.0
        self.told: set[str] = set()
        self.logged = False
        self.tracker = RunTracker(task.tracking_uri, task.tracking_run, once=True) if engine.rank == 0 else None
        self.validation = Validation(
            task.config, task.manifest, decoder, engine.device, board.log, dependencies=task.dependencies
        )

    def say(self, line: str) -> None:
        """Send a line to the user, with the name of the run."""
        self.board.log(f"train {self.config.run.name}: {line}")

    def tell_once(self, about: str, line: str | None) -> None:
        """Say a line about something, the first time that there is one."""
        if line and about not in self.told and self.tracker is not None:
            self.told.add(about)
            self.say(line)

    def note(self, report: StepReport, before: int) -> None:
        """Show progress; log and look when it is due."""
        budget, images = self.config.budget, self.engine.images_seen
        for line in self.engine.notes:
            self.say(f"worker {self.engine.rank}: {line}")
        self.engine.notes.clear()
        for complaint in self.damage.take_news():
            self.say(f"worker {self.engine.rank}: {complaint}; others stand in for its rows")
        if self.tracker is not None and time.monotonic() - self.shown > SHOW_SECONDS:
            self.shown = time.monotonic()
            self.board.advance(images, report.losses)
        if crossed(before, images, budget.log_every_images):
            replaced = self.count_replaced()
            if self.tracker is not None:
                self.log(self.tracker, report, replaced)
        # After the last step comes the final look.
        if crossed(before, images, budget.validate_every_images) and images < budget.images:
            self.look(final=False)

    def count_replaced(self) -> int:
        """Count the rows of damaged files that others stood in for since this start, over all ranks."""
        rows = torch.tensor(self.damage.rows)
        if self.engine.host_group is not None:
            dist.all_reduce(rows, group=self.engine.host_group)
        return int(rows)

    def log(self, tracker: RunTracker, report: StepReport, replaced_rows: int) -> None:
        """Write figures of the steps since the last entry, and warn once of what takes too long."""
        found = {f"loss_{name}": value for name, value in report.losses.items()}
        extra = {f"lr_{name}": value for name, value in report.learning_rates.items()}
        extra |= {f"grad_norm_{name}": value for name, value in report.grad_norms.items()}
        extra["skipped_steps"] = self.engine.skipped_steps
        extra["batch_size"] = self.engine.batch_size
        extra["num_workers"] = self.engine.num_ranks
        extra["replaced_rows"] = replaced_rows
        summary = self.engine.ledger.take() if self.engine.ledger.num_steps else None
        if summary is not None:
            found["images_per_second"] = summary.images_per_second * self.engine.num_ranks
            extra |= summary.metrics()
            # The first entry holds the start of readers and kernels, which says nothing of the run.
            if self.logged:
                self.tell_once("ledger", summary.warning(self.config))
            self.logged = True
        self.metrics |= found
        # What looks found is theirs to log: here it would stand at a position that it was not measured at.
        tracker.log(self.engine.images_seen, {**extra, **found})

    def look(self, *, final: bool) -> None:
        """Evaluate on held-out people and draw a preview; rank 0 does, all gather the networks."""
        with self.engine.ledger.paused():
            networks = self.engine.inference_networks()
            if self.tracker is None:
                return
            images = self.engine.images_seen
            found, picture = self.validation.look(self.engine.recipe, networks)
            self.metrics |= found
            self.board.report(images, found)
            self.tracker.log(images, found)
            if picture is not None:
                self.tracker.log_preview(images, picture, final=final)


def crossed(before: int, after: int, interval: int) -> bool:
    """Tell whether a multiple of `interval` lies in (before, after]."""
    return after // interval > before // interval
