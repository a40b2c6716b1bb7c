"""A trial as Ray Tune sees it: a training in a thread, whose evaluations are the steps.

A trial that is started again, by Tune or by a new start of the search, finds the checkpoints of its run and goes on by
itself. What Tune keeps as its checkpoint is a pointer to one of those.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import ray.exceptions
import ray.tune

from fusionray.checkpoint.info import copy_checkpoint, find_checkpoint, newest_checkpoint, read_info
from fusionray.errors import ConfigInvalid, FusionRayError
from fusionray.ray_cluster.progress import ProgressHandle
from fusionray.storage import filesystem as storage
from fusionray.training.config import TrainConfig
from fusionray.training.train import TrainResult, train
from fusionray.tuning.plan import SearchPlan, configure_trial, milestone
from fusionray.tuning.records import Attempt, CheckpointTransfer, Records
from fusionray.tuning.space import Settings

POLL_SECONDS = 0.3
POINTER_NAME = "pointer.json"
# What Ray reserves for the process that watches a training; the workers ask for theirs themselves. Tune refuses 0.
TRIAL_CPUS = 0.01


class FusionTrial(ray.tune.Trainable):  # type: ignore[misc]
    """Run one trial; every step lasts until the next evaluation."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:  # noqa: ARG003 - Tune's signature
        """Ask for next to nothing."""
        return ray.tune.PlacementGroupFactory([{"CPU": TRIAL_CPUS}])

    def setup(self, config: dict[str, Any], plan: SearchPlan, halting: ProgressHandle) -> None:
        """Find out which run is the trial's newest; `halting` tells all trials of the search to end."""
        self.plan = plan
        self.halting = halting
        self.name: str = self.trial_id
        self.records = Records(plan.folder)
        self.settings: Settings = config["settings"]
        handovers = self.records.handovers(self.name)
        self.run_name = Path(handovers[-1].run).name if handovers else self.name
        self.training: Training | None = None

    def step(self) -> dict[str, Any]:
        """Train until there is an evaluation to report, or nothing left to do.

        Raises: whatever the training raised; ConfigInvalid if the metric is not measured.
        """
        if self.training is None:
            config = configure_trial(self.plan, self.run_name, self.settings)
            self.training = Training(config, self.plan.parent_run, self.records, self.name)
        training = self.training
        while True:
            alive = training.alive  # asked first: what it reported last is seen below
            training.look()
            # With the last evaluation comes a checkpoint: it is told when that is written.
            if alive and training.reports and training.reports[0][0] < self.plan.images:
                return self.describe(*training.reports.pop(0))
            if not alive:
                result = training.finish()
                if len(training.reports) > 1:
                    return self.describe(*training.reports.pop(0))
                newest = training.reports.pop() if training.reports else (result.images_seen, result.metrics)
                return self.describe(*newest) | {"done": True, "whole": True, "tracking_run": result.tracking_run}
            if self.is_halted():
                training.halt()
                return {"done": True}
            time.sleep(POLL_SECONDS)

    def is_halted(self) -> bool:
        """Tell whether the search is to end; a busy machine that does not answer is asked again soon."""
        with contextlib.suppress(ray.exceptions.GetTimeoutError):
            return self.halting.look().halted
        return False

    def describe(self, images: int, metrics: dict[str, float]) -> dict[str, Any]:
        """Say to Tune, and to the driver's records, what an evaluation found."""
        wanted = self.plan.config.metric
        if wanted not in metrics:
            assert self.training is not None, "somebody reported"
            known = ", ".join(sorted(metrics)) or "nothing; let train.data.validation_images hold people out"
            self.training.note(error=f"metric={wanted} is not measured; what is: {known}")
            raise ConfigInvalid(self.training.attempt.error)
        return {
            wanted: metrics[wanted],
            "metrics": metrics,
            "images": images,
            "milestone": milestone(images, self.plan.train.budget.validate_every_images),
            "run": self.run_name,
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Let the run write a checkpoint and end, for Tune is about to pause or to clone it; point at what it wrote."""
        if self.training is not None:
            self.training.halt()
            self.training = None
        pointer = {"trial": self.name, "checkpoint": find_checkpoint(self.run_folder), "settings": self.settings}
        (Path(checkpoint_dir) / POINTER_NAME).write_text(json.dumps(pointer))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Go on from a checkpoint: one of its own is found by the run itself, that of another trial is copied.

        The copy begins a run of its own name, since settings of a run never change.
        """
        pointer = json.loads((Path(checkpoint_dir) / POINTER_NAME).read_text())
        handovers = self.records.handovers(self.name)
        known = bool(handovers) and handovers[-1].checkpoint == pointer["checkpoint"]
        if pointer["trial"] == self.name or known:
            return
        self.run_name = f"{self.name}-g{len(handovers) + 1}"
        copy = copy_checkpoint(pointer["checkpoint"], self.run_folder)
        handover = CheckpointTransfer(
            run=self.run_folder,
            giver=pointer["trial"],
            checkpoint=pointer["checkpoint"],
            images=read_info(copy).images_seen,
            settings=self.settings,
        )
        self.records.write_handover(self.name, len(handovers) + 1, handover)

    @property
    def run_folder(self) -> str:
        """Say where the trial's newest run lies."""
        return storage.join(self.plan.train.run.output, self.run_name)

    def cleanup(self) -> None:
        """Let the run write a checkpoint and end; left alone, it would keep its workers' resources."""
        if self.training is not None:
            # Whoever ends it asks for no result: a training that failed meanwhile is found out by its next start.
            with contextlib.suppress(FusionRayError, ray.exceptions.RayError):
                self.training.halt()
            self.training = None


class Training:
    """One start of a training in a thread, and what it reported that nobody took yet."""

    def __init__(self, config: TrainConfig, parent_run: str, records: Records, trial: str) -> None:
        self.config = config
        self.parent_run = parent_run
        self.records = records
        self.trial = trial
        self.board = ProgressHandle()
        self.reports: list[tuple[int, dict[str, float]]] = []
        self.newest_report = -1
        self.result: TrainResult | None = None
        self.error: BaseException | None = None
        self.halted = False
        self.number = len(records.attempts(trial)) + 1
        folder = storage.join(config.run.output, config.run.name)
        newest = newest_checkpoint(folder)
        images = 0 if newest is None else read_info(newest).images_seen
        self.attempt = Attempt(run=folder, first_images=images, last_images=images)
        records.write_attempt(trial, self.number, self.attempt)
        self.thread = threading.Thread(target=self.run, name=f"train {config.run.name}", daemon=True)
        self.thread.start()

    def run(self) -> None:
        """Train; what goes wrong is kept for the thread that asks."""
        try:
            self.result = train(self.config, board=self.board, parent_run=self.parent_run)
        except BaseException as error:  # noqa: BLE001 - handed over to finish()
            self.error = error

    @property
    def alive(self) -> bool:
        """Tell whether it still trains."""
        return self.thread.is_alive()

    def look(self) -> None:
        """Take new evaluations from the board, and note how far the training is."""
        if self.attempt.ended:
            return
        try:
            standing = self.board.look()
        except ray.exceptions.GetTimeoutError:  # as above
            return
        for images, metrics in standing.reports:
            # The last evaluation may be made twice: once because it is due, once because it is the last.
            if images > self.newest_report:
                self.newest_report = images
                self.reports.append((images, dict(metrics)))
        if standing.lines:
            self.records.tell(self.trial, standing.lines)
        if standing.position > self.attempt.last_images:
            self.note(last_images=standing.position)

    def finish(self) -> TrainResult:
        """Take the result of a training that ended.

        Raises: what it raised.
        """
        self.thread.join()
        if self.attempt.ended:
            return self.outcome()
        self.board.close()
        if self.error is not None:
            self.note(ended="failed", error=" ".join(str(self.error).split())[:2000])
        else:
            result = self.outcome()
            whole = not self.halted or result.images_seen >= self.config.budget.images
            self.note(last_images=result.images_seen, ended="finished" if whole else "halted")
        return self.outcome()

    def outcome(self) -> TrainResult:
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def halt(self) -> None:
        """Let it write a checkpoint and end."""
        if not self.attempt.ended:
            self.halted = True
            self.board.halt()
            self.finish()

    def note(self, **changes: Any) -> None:
        self.attempt = self.attempt.model_copy(update=changes)
        self.records.write_attempt(self.trial, self.number, self.attempt)
