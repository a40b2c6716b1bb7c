"""A trial for Ray Tune: a training in a thread; each step ends with an evaluation.

If Tune or a new start of the search restarts a trial, the trial resumes from the newest checkpoint of its run. Its Tune
checkpoint is only a pointer to a checkpoint of the run.
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
from fusionray.tuning.records import Attempt, CheckpointTransfer, SearchRecords
from fusionray.tuning.space import Settings

POLL_SECONDS = 0.3
POINTER_NAME = "pointer.json"
# CPUs of the process that monitors a training; the workers reserve their own. Tune refuses 0.
TRIAL_CPUS = 0.01


class FusionTrial(ray.tune.Trainable):  # type: ignore[misc]
    """Run one trial; each step lasts until the next evaluation."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:  # noqa: ARG003 - Tune's signature
        """Reserve almost nothing for the monitoring process."""
        return ray.tune.PlacementGroupFactory([{"CPU": TRIAL_CPUS}])

    def setup(self, config: dict[str, Any], plan: SearchPlan, stop_handle: ProgressHandle) -> None:
        """Find the trial's newest run; `stop_handle` requests all trials of the search to stop."""
        self.plan = plan
        self.stop_handle = stop_handle
        self.name: str = self.trial_id
        self.records = SearchRecords(plan.folder)
        self.settings: Settings = config["settings"]
        transfers = self.records.transfers(self.name)
        self.run_name = Path(transfers[-1].run).name if transfers else self.name
        self.training: TrainingThread | None = None

    def step(self) -> dict[str, Any]:
        """Train until there is an evaluation to report, or until the training ends.

        Raises: whatever the training raised; ConfigInvalid if the metric is not measured.
        """
        if self.training is None:
            config = configure_trial(self.plan, self.run_name, self.settings)
            self.training = TrainingThread(config, self.plan.parent_run, self.records, self.name)
        training = self.training
        while True:
            alive = training.alive  # Read before `poll`, which then sees the last report of a training that has ended.
            training.poll()
            # The last evaluation is reported only after the final checkpoint is written.
            if alive and training.reports and training.reports[0][0] < self.plan.images:
                return self.describe(*training.reports.pop(0))
            if not alive:
                result = training.finish()
                if len(training.reports) > 1:
                    return self.describe(*training.reports.pop(0))
                newest = training.reports.pop() if training.reports else (result.images_seen, result.metrics)
                return self.describe(*newest) | {"done": True, "complete": True, "tracking_run": result.tracking_run}
            if self.is_stop_requested():
                training.stop()
                return {"done": True}
            time.sleep(POLL_SECONDS)

    def is_stop_requested(self) -> bool:
        """Return whether the search is stopping; if the actor is too busy to answer, the next poll asks again."""
        with contextlib.suppress(ray.exceptions.GetTimeoutError):
            return self.stop_handle.read().stop_requested
        return False

    def describe(self, images: int, metrics: dict[str, float]) -> dict[str, Any]:
        """Build the result of an evaluation for Tune and for the driver's records."""
        wanted = self.plan.config.metric
        if wanted not in metrics:
            assert self.training is not None, "a training reported"
            known = ", ".join(sorted(metrics)) or "none; set train.data.validation_images to hold out people"
            self.training.update_attempt(error=f"metric={wanted} is not measured; measured metrics: {known}")
            raise ConfigInvalid(self.training.attempt.error)
        return {
            wanted: metrics[wanted],
            "metrics": metrics,
            "images": images,
            "milestone": milestone(images, self.plan.train.budget.validate_every_images),
            "run": self.run_name,
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Let the run write a checkpoint and stop, because Tune pauses or clones the trial; write the pointer to it."""
        if self.training is not None:
            self.training.stop()
            self.training = None
        pointer = {"trial": self.name, "checkpoint": find_checkpoint(self.run_folder), "settings": self.settings}
        (Path(checkpoint_dir) / POINTER_NAME).write_text(json.dumps(pointer))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Continue from a checkpoint: a run finds its own checkpoints; one of another trial is copied.

        The copy starts a run with a new name, because the settings of a run never change.
        """
        pointer = json.loads((Path(checkpoint_dir) / POINTER_NAME).read_text())
        transfers = self.records.transfers(self.name)
        known = bool(transfers) and transfers[-1].checkpoint == pointer["checkpoint"]
        if pointer["trial"] == self.name or known:
            return
        self.run_name = f"{self.name}-g{len(transfers) + 1}"
        copy = copy_checkpoint(pointer["checkpoint"], self.run_folder)
        transfer = CheckpointTransfer(
            run=self.run_folder,
            source_trial=pointer["trial"],
            checkpoint=pointer["checkpoint"],
            images=read_info(copy).images_seen,
            settings=self.settings,
        )
        self.records.write_transfer(self.name, len(transfers) + 1, transfer)

    @property
    def run_folder(self) -> str:
        """Return the folder of the trial's newest run."""
        return storage.join(self.plan.train.run.output, self.run_name)

    def cleanup(self) -> None:
        """Let the run write a checkpoint and stop; otherwise it would keep its workers' resources."""
        if self.training is not None:
            # Errors are ignored: if the training failed, its next start fails with the same error.
            with contextlib.suppress(FusionRayError, ray.exceptions.RayError):
                self.training.stop()
            self.training = None


class TrainingThread:
    """One start of a training in a thread, with the reports that Tune has not received yet."""

    def __init__(self, config: TrainConfig, parent_run: str, records: SearchRecords, trial: str) -> None:
        self.config = config
        self.parent_run = parent_run
        self.records = records
        self.trial = trial
        self.progress = ProgressHandle()
        self.reports: list[tuple[int, dict[str, float]]] = []
        self.newest_report = -1
        self.result: TrainResult | None = None
        self.error: BaseException | None = None
        self.was_stopped = False
        self.number = len(records.attempts(trial)) + 1
        folder = storage.join(config.run.output, config.run.name)
        newest = newest_checkpoint(folder)
        images = 0 if newest is None else read_info(newest).images_seen
        self.attempt = Attempt(run=folder, first_images=images, last_images=images)
        records.write_attempt(trial, self.number, self.attempt)
        self.thread = threading.Thread(target=self.run, name=f"train {config.run.name}", daemon=True)
        self.thread.start()

    def run(self) -> None:
        """Train; keep an error for the thread that calls `finish`."""
        try:
            self.result = train(self.config, progress=self.progress, parent_run=self.parent_run)
        except BaseException as error:  # noqa: BLE001 - raised again by finish()
            self.error = error

    @property
    def alive(self) -> bool:
        """Return whether the training runs."""
        return self.thread.is_alive()

    def poll(self) -> None:
        """Take new evaluations and messages of the training, and record how many images it has seen."""
        if self.attempt.ended:
            return
        try:
            state = self.progress.read()
        except ray.exceptions.GetTimeoutError:  # The actor is busy; the next poll asks again.
            return
        for images, metrics in state.reports:
            # The last evaluation may run twice: at its regular interval, and at the end.
            if images > self.newest_report:
                self.newest_report = images
                self.reports.append((images, dict(metrics)))
        if state.lines:
            self.records.log(self.trial, state.lines)
        if state.completed > self.attempt.last_images:
            self.update_attempt(last_images=state.completed)

    def finish(self) -> TrainResult:
        """Return the result of a training that ended.

        Raises: the error of the training.
        """
        self.thread.join()
        if self.attempt.ended:
            return self.result_or_raise()
        self.progress.close()
        if self.error is not None:
            self.update_attempt(ended="failed", error=" ".join(str(self.error).split())[:2000])
        else:
            result = self.result_or_raise()
            complete = not self.was_stopped or result.images_seen >= self.config.budget.images
            self.update_attempt(last_images=result.images_seen, ended="finished" if complete else "interrupted")
        return self.result_or_raise()

    def result_or_raise(self) -> TrainResult:
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def stop(self) -> None:
        """Let the training write a checkpoint, and wait until it has stopped."""
        if not self.attempt.ended:
            self.was_stopped = True
            self.progress.request_stop()
            self.finish()

    def update_attempt(self, **changes: Any) -> None:
        self.attempt = self.attempt.model_copy(update=changes)
        self.records.write_attempt(self.trial, self.number, self.attempt)
