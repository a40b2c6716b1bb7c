"""What one training worker does: stream, step, report. Rank 0 also tracks, previews and evaluates."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist

from fusionray.data import storage
from fusionray.data.decoding import CropDecoder
from fusionray.data.order import DataOrder, DataPosition
from fusionray.data.reading import Damage, RayReader, list_files
from fusionray.data.shards import Manifest
from fusionray.data.stream import TrainingStream, prefetched
from fusionray.errors import CheckpointDamaged
from fusionray.evaluation.judges import JudgePlaces
from fusionray.ops.hardware import describe_profile, detect_profile
from fusionray.ops.placement import bind_worker, gpu_address
from fusionray.ops.progress import ProgressBoard
from fusionray.ops.tracking import RunTracker
from fusionray.training.batching import fit_batch
from fusionray.training.build import EncoderState, build_recipe, describe_lookers, start_from
from fusionray.training.checkpoint.info import CheckpointInfo
from fusionray.training.checkpoint.tensors import agree_newest, load_into
from fusionray.training.checkpoint.writer import CheckpointWriter
from fusionray.training.engine import Engine
from fusionray.training.prefetch import DeviceFeed
from fusionray.training.profiler import StepProfiler
from fusionray.training.report import StepReport
from fusionray.training.settings import TrainConfig
from fusionray.training.state import counters, restore, state_tensors
from fusionray.training.validation import Validation
from fusionray.types import Batch

# How often the progress line is renewed: reading a loss waits for the device.
SHOW_SECONDS = 0.5
# Rows by which the largest batch is found: repeated, they stand for any number.
SAMPLE_IMAGES = 4


@dataclass(frozen=True)
class WorkerTask:
    """Everything a worker is told, as plain data."""

    config: TrainConfig
    manifest: Manifest
    run_folder: str
    people: list[str]
    encoder: EncoderState | None
    tracking_run: str
    tracking_uri: str
    owner: str
    judges: JudgePlaces | None = None


def train_worker(loop_config: Mapping[str, Any]) -> None:
    """Train until the budget is used up; entry point of a Ray Train worker."""
    task: WorkerTask = loop_config["task"]
    board: ProgressBoard = loop_config["board"]
    config = task.config
    context = ray.train.get_context()
    device = ray.train.torch.get_device()
    num_local = context.get_local_world_size()
    placement = bind_worker(
        context.get_local_rank(),
        num_local,
        device,
        threads=config.workers.threads,
        bind=config.workers.bind,
        peers=gather_peers(device, context.get_node_rank()),
    )
    recipe = build_recipe(
        config, num_people=len(task.people), encoder=task.encoder, synthetic_faces=task.manifest.synthetic
    )
    if config.run.start_from is not None:
        start_from(recipe, config.run.start_from)
    profile = detect_profile(device)
    engine = Engine(
        recipe,
        config.engine,
        total_images=config.budget.images,
        device=device,
        seed=config.run.seed,
        profile=profile,
        num_local=num_local,
    )
    worker = Worker(task, engine, board=board)
    try:
        worker.resume()
        worker.fit_batch()
        if worker.rank == 0:
            used = profile.model_copy(update=engine.choices())
            board.say(f"train {config.run.name}: {describe_profile(used, device)}; worker 0 on {placement.reason}")
            board.say(f"train {config.run.name}: {engine.describe()}")
        worker.run()
    finally:
        worker.close()


def gather_peers(device: torch.device, node_rank: int) -> list[str | None] | None:
    """List the PCI addresses of the GPUs that this node's workers have, by local rank: they share cores with these."""
    if device.type != "cuda" or not dist.is_initialized():
        return None
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (node_rank, gpu_address(device)))
    return [address for node, address in everyone if node == node_rank]


class Worker:
    """One rank's run: the state that lies between the data, the engine and the reports."""

    def __init__(self, task: WorkerTask, engine: Engine, *, board: ProgressBoard) -> None:
        config = task.config
        self.task = task
        self.config = config
        self.engine = engine
        self.rank = engine.rank
        self.board = board
        self.seconds_before = 0.0
        self.started = time.monotonic()
        self.shown = 0.0
        self.told: set[str] = set()
        self.logged = False
        self.metrics: dict[str, float] = {}
        self.position = DataPosition()
        self.decoder = CropDecoder(config.data.size, config.data.decode_threads or engine.profile.decode_threads)
        regions = config.needs_regions(synthetic=task.manifest.synthetic)
        self.files = list_files(config.data.shards, task.manifest, "train", with_regions=regions)
        self.damage = Damage(config.data.max_damaged_files)
        self.order = DataOrder(self.files.rows, config.run.seed, engine.num_ranks, config.data.pool_rows)
        self.writer = CheckpointWriter(
            task.run_folder,
            rank=engine.rank,
            num_ranks=engine.num_ranks,
            keep=config.budget.keep_checkpoints,
            best_metric=config.budget.best_metric,
            best_is=config.budget.best_is,
            owner=task.owner,
        )
        self.validation = Validation(config, task.manifest, self.decoder, engine.device, board.say, judges=task.judges)
        self.tracker = RunTracker(task.tracking_uri, task.tracking_run) if self.rank == 0 else None
        self.profiler = StepProfiler(
            storage.join(task.run_folder, "profile"),
            config.tracking.profile_steps if self.rank == 0 else 0,
            device=engine.device,
            say=board.say,
        )

    def resume(self) -> None:
        """Take over the newest whole checkpoint of this run, if there is one; all ranks the same."""
        group = self.engine.host_group
        refused: dict[str, str] = {}
        while (folder := agree_newest(self.task.run_folder, refused=refused, group=group)) is not None:
            try:
                restore(self.engine, partial(self.take_over, folder))
                return
            except CheckpointDamaged as error:  # on all ranks alike
                refused[folder] = str(error)
                if self.rank == 0:
                    self.board.say(f"train {self.config.run.name}: {error}; trying the one before it")

    def take_over(self, folder: str, tensors: dict[str, torch.Tensor]) -> dict[str, int]:
        """Load a checkpoint into tensors; returns its counters.

        Raises: as `load_into`.
        """
        # Scalers belong to fp16 alone, and the precision may change when a run goes on.
        info = load_into(folder, tensors, optional=("scalers.",), group=self.engine.host_group)
        self.seconds_before = info.seconds
        self.metrics = dict(info.metrics)
        self.position = DataPosition.model_validate(info.position or {})
        return info.counters

    def fit_batch(self) -> None:
        """Find the batch size where the device is to choose it."""
        if "auto" in (self.config.engine.batch_size, self.config.engine.global_batch):
            fit_batch(self.engine, next(self.batches(SAMPLE_IMAGES)))

    def run(self) -> None:
        """Step until the images or the seconds are used up; every due report is made on the way."""
        budget, engine = self.config.budget, self.engine
        self.started = time.monotonic()
        saved, planned = engine.images_seen, False
        engine.ledger.annotate = self.config.tracking.profile_steps > 0
        engine.ledger.restart()
        depth = self.config.data.prefetch_batches
        with prefetched(lambda: self.batches(engine.share_images), depth) as batches:
            feed = DeviceFeed(batches, engine.device)
            while engine.images_seen < budget.images and not self.out_of_time():
                before = engine.images_seen
                with engine.ledger.part("data_wait"):
                    share = next(feed)
                report = engine.step(share)
                self.position = self.order.advance(self.position, engine.share_images)
                self.note(report, before)
                # The last checkpoint waits for the last look, whose figures belong into it.
                finished = engine.images_seen >= budget.images
                if crossed(before, engine.images_seen, budget.checkpoint_images) and not finished:
                    self.save()
                    saved = engine.images_seen
                elif not planned:
                    # Planning the first save takes longer than a step: done once, before it is due.
                    self.writer.prepare(state_tensors(engine))
                    planned = True
                elif self.writer.finished():
                    self.writer.wait()  # a save that failed is told now, on all ranks
                engine.ledger.end_step(engine.share_images)
                self.profiler.step()
        if saved != engine.images_seen:
            self.look(final=True)
            self.save()
        self.writer.wait()

    def close(self) -> None:
        """Give back threads; a save that is under way is waited for."""
        self.profiler.close()
        self.decoder.close()
        self.writer.close()

    def out_of_time(self) -> bool:
        """Tell whether the time budget is spent; rank 0's clock decides for all, or ranks would part."""
        limit = self.config.budget.max_seconds
        if limit is None:
            return False
        spent = torch.tensor(float(self.spent() >= limit))
        if self.engine.host_group is not None:
            dist.broadcast(spent, src=0, group=self.engine.host_group)
        return bool(spent)

    def spent(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def batches(self, size: int) -> Iterator[Batch]:
        """Stream this rank's part of the training split from its position on, without end."""
        reader = RayReader(self.files, self.damage, timeout_seconds=self.config.data.timeout_seconds)
        stream = TrainingStream(self.order, reader, self.decoder, rank=self.rank, batch=size)
        batches: Iterator[Batch]
        if self.config.streams == "pairs":
            ratio = self.config.data.same_identity_ratio
            batches = stream.pairs(self.position, same_identity_ratio=ratio)
        else:
            labels = {person: index for index, person in enumerate(self.task.people)}
            batches = stream.faces(self.position, labels=labels)
        return (batch.pin() for batch in batches) if self.engine.device.type == "cuda" else batches

    def note(self, report: StepReport, before: int) -> None:
        """Show progress; log and look when it is due."""
        budget, images = self.config.budget, self.engine.images_seen
        for line in self.engine.notes:
            self.board.say(f"train {self.config.run.name}: worker {self.rank}: {line}")
        self.engine.notes.clear()
        for complaint in self.damage.take_news():
            said = f"{complaint}; others stand in for its rows"
            self.board.say(f"train {self.config.run.name}: worker {self.rank}: {said}")
        if self.rank == 0 and time.monotonic() - self.shown > SHOW_SECONDS:
            self.shown = time.monotonic()
            self.board.advance(images, report.losses)
        if crossed(before, images, budget.log_images):
            replaced = self.count_replaced()
            if self.rank == 0:
                self.log(report, replaced)
        if crossed(before, images, budget.preview_images):
            self.look(final=False)

    def count_replaced(self) -> int:
        """Count the rows of damaged files that others stood in for since this start, over all ranks."""
        rows = torch.tensor(self.damage.rows)
        if self.engine.host_group is not None:
            dist.all_reduce(rows, group=self.engine.host_group)
        return int(rows)

    def log(self, report: StepReport, replaced_rows: int) -> None:
        """Write figures of the steps since the last entry, and warn once of what takes too long."""
        assert self.tracker is not None
        self.metrics |= {f"loss_{name}": value for name, value in report.losses.items()}
        extra = {f"lr_{name}": value for name, value in report.learning_rates.items()}
        extra |= {f"grad_norm_{name}": value for name, value in report.grad_norms.items()}
        extra["skipped_steps"] = self.engine.skipped_steps
        extra["batch_size"] = self.engine.batch_size
        extra["replaced_rows"] = replaced_rows
        summary = self.engine.ledger.take() if self.engine.ledger.num_steps else None
        if summary is not None:
            self.metrics["images_per_second"] = summary.images_per_second * self.engine.num_ranks
            extra |= summary.metrics()
            # The first entry holds the start of readers and kernels, which says nothing of the run.
            if self.logged:
                self.tell_once("ledger", summary.warning(self.config))
            self.logged = True
        self.tracker.log(self.engine.images_seen, {**extra, **self.metrics})

    def tell_once(self, about: str, line: str | None) -> None:
        """Say a line about something, the first time that there is one."""
        if line and about not in self.told and self.rank == 0:
            self.told.add(about)
            self.board.say(f"train {self.config.run.name}: {line}")

    def look(self, *, final: bool) -> None:
        """Evaluate on held-out people and draw a preview; rank 0 does, all gather the networks."""
        with self.engine.ledger.paused():
            networks = self.engine.inference_networks()
            if self.tracker is None:
                return
            found, picture = self.validation.look(self.engine.recipe, networks)
            self.metrics |= found
            self.tracker.log(self.engine.images_seen, self.metrics)
            if picture is not None:
                self.tracker.log_preview(self.engine.images_seen, picture, final=final)

    def save(self) -> None:
        """Begin a checkpoint; it is written while the next steps run."""
        wanted = self.config.budget.best_metric
        if wanted and wanted not in self.metrics:
            known = ", ".join(sorted(self.metrics))
            self.tell_once("best", f"budget.best_metric={wanted} is not measured yet; what is: {known}")
        info = CheckpointInfo(
            config=self.config.model_dump(mode="json"),
            num_people=len(self.task.people),
            data_digest=self.task.manifest.digest(),
            images_seen=self.engine.images_seen,
            seconds=self.spent(),
            metrics=self.metrics,
            counters=counters(self.engine),
            position=self.position.model_dump(mode="json"),
            **describe_lookers(self.engine.recipe),
        )
        self.writer.begin(state_tensors(self.engine), info)
        ray.train.report({"images_seen": self.engine.images_seen, **self.metrics})


def crossed(before: int, after: int, interval: int) -> bool:
    """Tell whether a multiple of `interval` lies in (before, after]."""
    return after // interval > before // interval
