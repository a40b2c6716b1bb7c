"""The training loop of one rank: read batches, step the engine, save checkpoints.

`ProgressLogger` (`Worker.logger`) does logging, validation and previews. All ranks make the same collective calls in
the same order.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial

import ray.train
import torch
import torch.distributed as dist

from fusionray.checkpoint.info import CheckpointInfo
from fusionray.checkpoint.reader import agree_newest, load_into
from fusionray.checkpoint.writer import CheckpointWriter
from fusionray.config import hide_passwords
from fusionray.data.decoding import CropDecoder
from fusionray.data.order import SINGLE_STRIDE, DataOrder, DataPosition
from fusionray.data.prefetch import prefetched
from fusionray.data.ray_data_reader import RayDataReader
from fusionray.data.shard_readers import LocalReader
from fusionray.data.stream import TrainingStream
from fusionray.errors import CheckpointDamaged, CheckpointFailed
from fusionray.ray_cluster.progress import ProgressHandle, WorkerInfo
from fusionray.storage import filesystem as storage
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.state import counters, restore, state_tensors
from fusionray.training.faults.warm_spares import FIRST_STEP_NODE
from fusionray.training.run.batch_size_search import fit_batch
from fusionray.training.run.device_prefetcher import DevicePrefetcher
from fusionray.training.run.progress_logger import ProgressLogger, crossed
from fusionray.training.run.task import WorkerTask
from fusionray.training.timing.profiler import StepProfiler
from fusionray.types import Batch

# Real rows per rank for the search of the batch size; the search repeats them to the size that it tries.
SAMPLE_IMAGES = 4


class Worker:
    """One rank of a run: the engine, the position in the data, and the writer of checkpoints.

    Call `resume`, `fit_batch`, `run` and, in any case, `close`, in this order on all ranks.
    """

    def __init__(self, task: WorkerTask, engine: Engine, reader: RayDataReader, *, progress: ProgressHandle) -> None:
        config = task.config
        self.task = task
        self.config = config
        self.engine = engine
        self.rank = engine.rank
        self.progress = progress
        self.node = ray.get_runtime_context().get_node_id()
        self.reader = reader
        self.seconds_before = 0.0
        self.started = time.monotonic()
        # `images_seen` of the newest checkpoint; -1 while there is none.
        self.saved = -1
        self.save_began = self.started
        self.position = DataPosition()
        self.decoder = CropDecoder(config.data.size, config.data.decode_threads or engine.profile.decode_threads)
        decoded = config.data.decode == "nodes"
        # Held-out crops are decoded here in any case.
        self.train_decoder = CropDecoder(config.data.size, threads=1, decoded=True) if decoded else self.decoder
        self.order = DataOrder(
            reader.files.rows,
            config.run.seed,
            engine.num_ranks,
            config.data.shuffle_buffer_rows,
            stride=SINGLE_STRIDE if config.family.num_roles == 1 else 1,
        )
        self.logger = ProgressLogger(task, engine, self.decoder, reader.corruption, progress)
        self.writer = CheckpointWriter(
            task.run_folder,
            rank=engine.rank,
            num_ranks=engine.num_ranks,
            keep=config.budget.keep_checkpoints,
            best_metric=config.budget.best_metric,
            best_mode=config.budget.best_mode,
            fencing_token=task.fencing_token,
        )
        self.profiler = StepProfiler(
            storage.join(task.run_folder, "profile"),
            config.tracking.profile_steps if self.rank == 0 else 0,
            device=engine.device,
            log_line=progress.log,
        )

    def resume(self) -> None:
        """Restore the newest complete checkpoint of this run, the same on all ranks; do nothing if there is none.

        A damaged checkpoint is reported and skipped in favour of the one before it.

        Raises: CheckpointMissing if the state is of other networks, or no checkpoint can be read.
        """
        group = self.engine.host_group
        refused: dict[str, str] = {}
        while (folder := agree_newest(self.task.run_folder, refused=refused, group=group)) is not None:
            try:
                restore(self.engine, partial(self.load_checkpoint, folder))
                self.saved = self.engine.images_seen
                return
            except CheckpointDamaged as error:  # raised on all ranks alike
                refused[folder] = str(error)
                if self.rank == 0:
                    self.logger.log_line(f"{error}; trying the previous one")

    def load_checkpoint(self, folder: str, tensors: dict[str, torch.Tensor]) -> dict[str, int]:
        """Load a checkpoint into `tensors` in place, restore data position, metrics and time, and return the counters.

        Raises: CheckpointDamaged, CheckpointMissing, as `load_into`.
        """
        # Gradient scalers exist for fp16 only, and a resumed run may change its precision.
        info = load_into(folder, tensors, optional=("scalers.",), group=self.engine.host_group)
        self.seconds_before = info.seconds
        self.logger.metrics = dict(info.metrics)
        self.position = DataPosition.model_validate(info.position or {})
        return info.counters

    def fit_batch(self) -> None:
        """Search the largest batch that fits the device, if `engine.batch_size` or `engine.global_batch` is `auto`.

        Raises: TrainingFailed if the fewest images do not fit.
        """
        if "auto" in (self.config.engine.batch_size, self.config.engine.global_batch):
            # A few rows, for which processes need not start.
            local = LocalReader(self.reader.files, self.reader.corruption)
            fit_batch(self.engine, next(self.batches(SAMPLE_IMAGES * self.engine.num_ranks, local)))

    def run(self) -> None:
        """Train until the budget of images or seconds is used up, or the user requests a stop; then save and wait.

        Checkpoints, log entries and validations are made on the way when they are due. A requested stop skips the final
        validation.

        Raises: CheckpointFailed if a save failed; any error of data or training.
        """
        budget, engine = self.config.budget, self.engine
        self.started = time.monotonic()
        self.report_ready()
        has_stepped = stop_requested = False
        engine.step_timer.annotate = self.config.tracking.profile_steps > 0
        engine.step_timer.restart()
        depth = self.config.data.prefetch_batches
        with prefetched(lambda: self.batches(engine.global_batch), depth) as batches:
            feed = DevicePrefetcher(batches, engine.device)
            while engine.images_seen < budget.images:
                finished, stop_requested = self.check_stop()
                if finished:
                    break
                before = engine.images_seen
                with engine.step_timer.part("data_wait"):
                    local_batch = next(feed)
                report = engine.step(local_batch)
                self.position = self.order.advance(self.position, engine.global_batch)
                self.logger.record_step(report, before)
                # The last checkpoint is saved below, after the final validation, because it stores the final metrics.
                finished = engine.images_seen >= budget.images
                if crossed(before, engine.images_seen, budget.checkpoint_every_images) and not finished:
                    self.save()
                elif not has_stepped:
                    # Planning the first save takes longer than a step, so it is done once, before a save is due.
                    self.writer.prepare(state_tensors(engine))
                elif self.writer.finished():
                    self.wait_for_save()  # raises on all ranks if the save failed
                if not has_stepped:
                    has_stepped = True
                    ray.train.report({FIRST_STEP_NODE: self.node})
                engine.step_timer.end_step(len(local_batch))
                self.profiler.step()
        if self.saved != engine.images_seen:
            if not stop_requested:
                self.logger.evaluate(final=True)
            self.save()
        self.wait_for_save()
        if self.rank == 0:
            if self.config.data.decode == "nodes":
                rows = ", ".join(f"{count} on {node}" for node, count in self.reader.rows_by_node.most_common())
                self.logger.log_line(f"crops that worker 0 got from tasks: {rows or 'none'}")
            self.progress.set_completed(engine.images_seen, {})

    def report_ready(self) -> None:
        """Report that this worker is ready to step; never waits."""
        self.progress.add_worker(
            WorkerInfo(self.rank, self.engine.num_ranks, os.getpid(), self.node, self.engine.images_seen)
        )
        if self.rank == 0:
            self.progress.set_completed(self.engine.images_seen, {})

    def close(self) -> None:
        """Wait for a save in progress, and release threads and the reading process.

        Raises: CheckpointFailed if that save failed, TrackerFailed.
        """
        self.profiler.close()
        self.decoder.close()
        self.train_decoder.close()
        self.reader.close()
        try:
            self.writer.close()
        finally:
            self.logger.close()

    def check_stop(self) -> tuple[bool, bool]:
        """Return (stop the loop, the user requested it), the same on all ranks; all ranks call it before each step.

        Rank 0 decides and broadcasts: clocks differ, and a rank that stops alone would leave the others waiting.
        """
        limit = self.config.budget.max_seconds
        decision = torch.tensor(
            [
                limit is not None and self.elapsed_seconds() >= limit,
                self.rank == 0 and self.progress.is_stop_requested(),
            ]
        )
        if self.engine.host_group is not None:
            dist.broadcast(decision, src=0, group=self.engine.host_group)
        out_of_time, stop_requested = decision.tolist()
        return out_of_time or stop_requested, stop_requested

    def elapsed_seconds(self) -> float:
        """Return the seconds of training so far, including those of the starts before this one."""
        return self.seconds_before + time.monotonic() - self.started

    def batches(self, step_images: int, local: LocalReader | None = None) -> Iterator[Batch]:
        """Yield this rank's batches from `position` on, without end.

        `step_images`: images of a step over all ranks, of which each batch holds this rank's part; `local`: read in
        this process. Batches are on the CPU, in pinned memory if the engine is on a GPU.

        Raises: ShardCorrupt, DataTimeout.
        """
        reader, decoder = (local, self.decoder) if local else (self.reader, self.train_decoder)
        stream = TrainingStream(self.order, reader, decoder, rank=self.rank, step_rows=step_images)
        family = self.config.family
        batches: Iterator[Batch] = stream.batches(
            self.position,
            family.collate,
            num_roles=family.num_roles,
            same_identity_ratio=self.config.data.same_identity_ratio,
            source_folder=family.source_folder,
            labels=self.task.labels,
        )
        return (batch.pin() for batch in batches) if self.engine.device.type == "cuda" else batches

    def save(self) -> None:
        """Copy the state for a checkpoint, which a thread writes during the next steps, and report it to Ray Train.

        All ranks call it at the same step; it waits for the save before this one.

        Raises: CheckpointFailed if the save before this one failed, TrackerFailed.
        """
        wanted, metrics = self.config.budget.best_metric, self.logger.metrics
        if wanted and wanted not in metrics:
            known = ", ".join(sorted(metrics))
            self.logger.warn_once("best", f"budget.best_metric={wanted} is not measured yet; measured metrics: {known}")
        info = CheckpointInfo(
            config=hide_passwords(self.config.model_dump(mode="json")),
            num_people=self.task.manifest.num_people,
            data_digest=self.task.manifest.digest(),
            images_seen=self.engine.images_seen,
            seconds=self.elapsed_seconds(),
            metrics=metrics,
            timing=self.logger.timing,
            counters=counters(self.engine),
            position=self.position.model_dump(mode="json"),
            metadata=self.config.family.describe(self.engine.recipe),
        )
        self.wait_for_save()
        # Who resumes from this checkpoint does not log again what was logged before it.
        self.logger.flush()
        self.save_began = time.monotonic()
        self.writer.begin(state_tensors(self.engine), info)
        self.logger.timing["save_stall_seconds"] = time.monotonic() - self.save_began
        self.saved = self.engine.images_seen
        ray.train.report({"images_seen": self.engine.images_seen, **metrics})

    def wait_for_save(self) -> None:
        """Wait for the save in progress, if there is one, and count it.

        Raises: CheckpointFailed if it failed.
        """
        metrics = self.logger.ray_metrics
        try:
            if self.writer.wait() is not None:
                metrics.count_checkpoint()
                self.logger.timing["save_seconds"] = time.monotonic() - self.save_began
        except CheckpointFailed:
            metrics.count_checkpoint(failed=True)
            raise
