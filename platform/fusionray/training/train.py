"""The train stage: resolve what a run needs, then hand it to Ray Train. The same call goes on where a run stopped."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from fusionray.checkpoint.info import find_checkpoint, read_info, take_fencing_token
from fusionray.config import read_preset, validate
from fusionray.data.prepare import PrepareConfig, prepare
from fusionray.data.reading import list_people
from fusionray.data.shards import check_shards, read_manifest
from fusionray.environment import resolve_location
from fusionray.errors import ShardMismatch
from fusionray.ray_cluster.progress import ProgressHandle
from fusionray.storage import filesystem as storage
from fusionray.tracking import close_run, open_run, tracking_uri
from fusionray.training.config import PRESET_PREFIX, SYNTHETIC_PREFIX, TrainConfig
from fusionray.training.run.resume_guard import guard_resume, read_run_record
from fusionray.training.run.task import WorkerTask
from fusionray.training.run.worker_group import is_complete, run_workers
from fusionray.types import GROUP_NAMES


@dataclass(frozen=True)
class TrainResult:
    """Where a finished run lies; `metrics` are those of its last checkpoint."""

    run_folder: str
    checkpoint: str
    images_seen: int
    seconds: float
    metrics: dict[str, float]
    tracking_uri: str
    tracking_run: str


def train(config: TrainConfig, *, board: ProgressHandle | None = None, parent_run: str | None = None) -> TrainResult:
    """Train a recipe on the connected Ray cluster, from the last checkpoint of the same run if there is one.

    `board`: where progress and the figures of evaluations are told in place of a bar; once it says halt, the run ends
    with a checkpoint before its budget is used up. `parent_run`: the MLflow run that this one is part of.

    Raises: any FusionRayError of its parts; TrainingFailed when workers fail for good, RunStopped after a SIGTERM.
    """
    config = resolve_shards(resolve_output(config))
    run_folder = storage.join(config.run.output, config.run.name)
    former = read_run_record(run_folder)
    manifest, family = read_manifest(config.data.shards), config.family
    # A run begins with all of its files; one that goes on does without what was lost since.
    for complaint in check_shards(
        config.data.shards,
        manifest,
        size=config.data.size,
        task=family.task,
        template=config.data.template,
        with_parameters=family.needs_parameters(config.recipe),
        max_damaged=config.data.max_damaged_files if former else 0,
    ):
        tqdm.write(f"train {config.run.name}: {complaint}; goes on without it", file=sys.stderr)
    known = former and former.get("people")
    people = known or list_people(config.data.shards, manifest, "train")
    count = manifest.splits["train"].identities if family.task == "pictures" else len(people)
    if count < 2:
        shown = GROUP_NAMES[family.task]
        raise ShardMismatch(f"{config.data.shards}: has {count} {shown} to learn from; training needs at least 2")
    dependencies = load_dependencies(config)
    guard_resume(run_folder, config, manifest, people)
    uri = tracking_uri(config.tracking.uri, config.run.output)
    settings = config.model_dump(mode="json")
    run_id = open_run(uri, config.tracking.experiment, config.run.name, settings, parent=parent_run)
    failed = True
    try:
        if is_complete(run_folder, config.budget):
            tqdm.write(f"train {config.run.name}: {run_folder} is complete; nothing to do", file=sys.stderr)
        else:
            owner = take_fencing_token(run_folder)
            run_workers(WorkerTask(config, manifest, run_folder, people, dependencies, run_id, uri, owner), board)
        failed = False
    finally:
        close_run(uri, run_id, failed=failed)
    checkpoint = find_checkpoint(run_folder)
    info = read_info(checkpoint)
    return TrainResult(run_folder, checkpoint, info.images_seen, info.seconds, info.metrics, uri, run_id)


def resolve_output(config: TrainConfig) -> TrainConfig:
    """Make the places of a run absolute: workers have other working folders."""
    output = resolve_location(config.run.output)
    start = config.run.start_from
    if start is not None:
        start = resolve_location(start)
        find_checkpoint(start)  # one that holds nothing is told before any worker starts
    shards = config.data.shards
    if not shards.startswith(SYNTHETIC_PREFIX):
        shards = resolve_location(shards)
    return config.model_copy(
        update={
            "run": config.run.model_copy(update={"output": output, "start_from": start}),
            "data": config.data.model_copy(update={"shards": shards}),
        }
    )


def resolve_shards(config: TrainConfig) -> TrainConfig:
    """Prepare a synthetic world that is named in place of shards; a second call finds it done."""
    if not config.data.shards.startswith(SYNTHETIC_PREFIX):
        return config
    folder = storage.join(config.run.output, "shards")
    data = config.data
    prepare(
        PrepareConfig(input=data.shards, output=folder, task=config.family.task, size=data.size, template=data.template)
    )
    return config.model_copy(update={"data": config.data.model_copy(update={"shards": folder})})


def load_dependencies(config: TrainConfig) -> dict[str, Any]:
    """Load the trained networks that a recipe needs, by the key that names each; presets are trained first.

    Raises: CheckpointMissing, ValueError for networks that do not go together, and as `train`.
    """
    family = config.family
    loaded = {
        key: family.load_dependency(key, ensure_trained(config, place))
        for key, place in family.dependencies(config).items()
    }
    family.check_dependencies(config, loaded)
    return loaded


def ensure_trained(config: TrainConfig, location: str) -> str:
    """Find the checkpoint of a network that a run needs; `preset:NAME` trains it first, as a run beside this one.

    Raises: CheckpointMissing, and as `train`.
    """
    if location.startswith(PRESET_PREFIX):
        return train_dependency(config, location.removeprefix(PRESET_PREFIX)).checkpoint
    return find_checkpoint(resolve_location(location))


def train_dependency(config: TrainConfig, preset: str) -> TrainResult:
    """Train a preset beside a run: an encoder that watches or judges it, or a reader of attributes.

    Raises: as `train`.
    """
    return train(configure_dependency(config, preset))


def configure_dependency(config: TrainConfig, preset: str) -> TrainConfig:
    """Configure a preset for the data and the workers of another run, as a run of the preset's name beside it.

    Raises: ConfigInvalid.
    """
    tree = read_preset(preset)
    # How pairs are drawn says nothing to a run that learns from single faces; it would only be another run for it.
    tree["data"] = {**config.data.model_dump(exclude={"same_identity_ratio"}), **tree.get("data", {})}
    tree["run"] = {"name": preset, "output": config.run.output, "seed": config.run.seed, **tree.get("run", {})}
    tree["workers"] = config.workers.model_dump()
    tree["tracking"] = config.tracking.model_dump()
    return validate(TrainConfig, tree, f"preset {preset}")
