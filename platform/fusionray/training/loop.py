"""What one training worker does: stream, step, report. Rank 0 also tracks, previews, evaluates and saves."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist

from fusionray.data.pairs import Crop, CropPool, crops_from_table, draw_held_out_pairs
from fusionray.data.shards import Manifest
from fusionray.data.stream import (
    CropDecoder,
    collate_faces,
    collate_pairs,
    endless_blocks,
    in_batches,
    prefetched,
    read_split,
    stream_faces,
    stream_pairs,
)
from fusionray.nets.identity import IdentityEncoder
from fusionray.ops.progress import ProgressBoard
from fusionray.ops.tracking import RunTracker
from fusionray.recipes.face_fusion import FaceFusionConfig
from fusionray.recipes.recipe import tile
from fusionray.training.build import EncoderState, build_recipe
from fusionray.training.checkpoint import CheckpointInfo, checkpoint_name, load_checkpoint, save_checkpoint
from fusionray.training.engine import Engine, StepReport
from fusionray.training.settings import TrainConfig
from fusionray.types import Batch

PREVIEW_PAIRS = 8
EVALUATION_BATCH = 64


@dataclass(frozen=True)
class WorkerTask:
    """Everything a worker is told, as plain data."""

    config: TrainConfig
    manifest: Manifest
    shards: str
    people: list[str]
    encoder: EncoderState | None
    tracking_run: str
    tracking_uri: str


def train_worker(loop_config: Mapping[str, Any]) -> None:
    """Train until the budget is used up; entry point of a Ray Train worker."""
    task: WorkerTask = loop_config["task"]
    board: ProgressBoard = loop_config["board"]
    config = task.config
    context = ray.train.get_context()
    device = ray.train.torch.get_device()
    torch.set_num_threads(config.workers.threads or loop_config["threads"])
    recipe = build_recipe(
        config, num_people=len(task.people), encoder=task.encoder, synthetic_faces=task.manifest.synthetic
    )
    engine = Engine(recipe, config.engine, total_images=config.budget.images, device=device, seed=config.run.seed)
    worker = Worker(task, engine, rank=context.get_world_rank(), board=board)
    worker.resume()
    worker.run()


class Worker:
    """One rank's run: the state that lies between the data, the engine and the reports."""

    def __init__(self, task: WorkerTask, engine: Engine, *, rank: int, board: ProgressBoard) -> None:
        self.task = task
        self.config = task.config
        self.engine = engine
        self.rank = rank
        self.board = board
        self.seconds_before = 0.0
        self.metrics: dict[str, float] = {}
        self.decoder = CropDecoder(self.config.data.size, self.config.data.decode_threads)
        self.labels = {person: index for index, person in enumerate(task.people)}
        self.tracker: RunTracker | None = None
        if rank == 0:
            self.tracker = RunTracker(task.tracking_uri, task.tracking_run)

    def resume(self) -> None:
        """Take over the last checkpoint of this run, if there is one."""
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            return
        with checkpoint.as_directory() as folder:
            info, state = load_checkpoint(Path(folder))
        self.engine.load_state_dict(state)
        self.seconds_before = info.seconds
        self.metrics = dict(info.metrics)

    def run(self) -> None:
        """Step until the images or the seconds are used up; every due report is made on the way."""
        budget, engine = self.config.budget, self.engine
        started = time.monotonic()
        last_saved = engine.images_seen if engine.images_seen else -1
        with prefetched(self.batches, self.config.data.prefetch_batches) as batches:
            while engine.images_seen < budget.images and not self.out_of_time(started):
                before = engine.images_seen
                report = engine.step([next(batches) for _ in range(self.config.engine.accumulate)])
                self.note(report, before, started)
                # The last checkpoint waits for the last look, whose figures belong into it.
                finished = engine.images_seen >= budget.images
                if crossed(before, engine.images_seen, budget.checkpoint_images) and not finished:
                    self.save(started)
                    last_saved = engine.images_seen
        if last_saved != engine.images_seen:
            self.look(final=True)
            self.save(started)
        self.decoder.close()

    def out_of_time(self, started: float) -> bool:
        """Tell whether the time budget is spent; rank 0's clock decides for all, or ranks would part."""
        limit = self.config.budget.max_seconds
        if limit is None:
            return False
        spent = torch.tensor(float(self.spent(started) >= limit), device=self.engine.device)
        if dist.is_initialized():
            dist.broadcast(spent, src=0)
        return bool(spent.item())

    def spent(self, started: float) -> float:
        return self.seconds_before + time.monotonic() - started

    def batches(self) -> Iterator[Batch]:
        """Stream this rank's part of the training split as batches, without end."""
        config, data = self.config, self.config.data
        shard = ray.train.get_dataset_shard("train")
        assert shard is not None
        rows = self.task.manifest.splits["train"].rows // self.engine.num_ranks
        capacity = min(data.pool_rows, max(self.engine.micro_batch, rows // 2))
        pool = CropPool(capacity, [config.run.seed, self.rank, self.engine.images_seen])
        blocks = endless_blocks(shard)
        size = self.engine.micro_batch
        stream: Iterator[Batch]
        if isinstance(config.recipe, FaceFusionConfig):
            stream = stream_pairs(blocks, pool, self.decoder, batch=size, same_identity_ratio=data.same_identity_ratio)
        else:
            stream = stream_faces(blocks, pool, self.decoder, batch=size, labels=self.labels)
        pinned = self.engine.device.type == "cuda"
        return (batch.pin() for batch in stream) if pinned else stream

    def note(self, report: StepReport, before: int, started: float) -> None:
        """Show progress; log and look when it is due (rank 0 only)."""
        if self.rank != 0:
            return
        budget, images = self.config.budget, self.engine.images_seen
        self.metrics["images_per_second"] = images / max(1e-9, self.spent(started))
        self.metrics |= {f"loss_{name}": value for name, value in report.losses.items()}
        self.board.advance(images, report.losses)
        if crossed(before, images, budget.log_images) and self.tracker is not None:
            rates = {f"lr_{name}": value for name, value in report.learning_rates.items()}
            norms = {f"grad_norm_{name}": value for name, value in report.grad_norms.items()}
            self.tracker.log(images, {**self.metrics, **rates, **norms, "skipped_phases": len(report.skipped)})
        if crossed(before, images, budget.preview_images):
            self.look(final=False)

    def look(self, *, final: bool) -> None:
        """Evaluate on held-out people and draw a preview (rank 0 only)."""
        if self.rank != 0 or self.tracker is None:
            return
        batches = list(self.held_out())
        networks = self.engine.inference_networks()
        self.metrics |= self.engine.recipe.evaluate(networks, batches)
        self.tracker.log(self.engine.images_seen, self.metrics)
        if batches:
            grid = self.engine.recipe.preview(networks, batches[0].head(PREVIEW_PAIRS))
            if grid is not None:
                self.tracker.log_preview(self.engine.images_seen, tile(grid), final=final)

    def held_out(self) -> Iterator[Batch]:
        """Yield the evaluation batches: always the same pictures of people that are not trained on."""
        data, manifest = self.config.data, self.task.manifest
        if not manifest.files("validation") or data.validation_images == 0:
            return
        table = read_split(self.task.shards, manifest, "validation")
        crops = crops_from_table(table.slice(0, data.validation_images))
        fusing = isinstance(self.config.recipe, FaceFusionConfig)
        if not comparable(crops, with_same_person=not fusing):
            self.board.say(
                f"train {self.config.run.name}: not evaluated, since the {len(crops)} held-out pictures are not of at "
                "least two people, one of them twice; raise data.validation_images, or hold out more people in prepare"
            )
            return
        if fusing:
            pairs = draw_held_out_pairs(crops, min(len(crops), data.validation_images), self.config.run.seed)
            for group in in_batches(pairs, EVALUATION_BATCH):
                yield collate_pairs(group, self.decoder).to(self.engine.device)
        else:
            labels = {person: index for index, person in enumerate(sorted({crop.identity for crop in crops}))}
            for crop_group in in_batches(crops, EVALUATION_BATCH):
                yield collate_faces(crop_group, self.decoder, labels).to(self.engine.device)

    def save(self, started: float) -> None:
        """Report a checkpoint through Ray Train; state is equal on all ranks, so rank 0 writes it alone."""
        if self.rank != 0:
            ray.train.report({}, checkpoint=None)
            return
        encoder = self.engine.recipe.frozen.get("identity")
        state = self.engine.state_dict()
        if encoder is not None:
            state["identity_encoder"] = encoder.state_dict()
        info = CheckpointInfo(
            config=self.config.model_dump(mode="json"),
            num_people=len(self.task.people),
            identity_encoder=self.encoder_config(),
            data_digest=self.task.manifest.digest(),
            images_seen=self.engine.images_seen,
            seconds=self.spent(started),
            metrics=self.metrics,
        )
        name = checkpoint_name(self.engine.images_seen)
        with TemporaryDirectory(prefix="fusionray-checkpoint-") as folder:
            save_checkpoint(Path(folder), state, info)
            ray.train.report(
                {"images_seen": self.engine.images_seen, **self.metrics},
                checkpoint=ray.train.Checkpoint.from_directory(folder),
                checkpoint_dir_name=name,
            )

    def encoder_config(self) -> dict[str, Any] | None:
        recipe = self.config.recipe
        if not isinstance(recipe, FaceFusionConfig):
            return recipe.encoder.model_dump(mode="json")
        encoder = self.engine.recipe.frozen["identity"]
        assert isinstance(encoder, IdentityEncoder)
        return encoder.config.model_dump(mode="json")


def comparable(crops: Sequence[Crop], *, with_same_person: bool) -> bool:
    """Tell whether pictures hold two people and, if asked for, two pictures of one of them."""
    num_people = len({crop.identity for crop in crops})
    return num_people > 1 and (len(crops) > num_people or not with_same_person)


def crossed(before: int, after: int, interval: int) -> bool:
    """Tell whether a multiple of `interval` lies in (before, after]."""
    return after // interval > before // interval
