"""The train stage: resolve the dependencies of a run, then run it on Ray Train. The same call resumes a stopped run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from fusionray.checkpoint.info import (
    find_checkpoint,
    find_dependency,
    newest_checkpoint,
    read_info,
    take_fencing_token,
)
from fusionray.config import read_preset, validate
from fusionray.data.person_labels import read_labels
from fusionray.data.prepare import PrepareConfig, prepare
from fusionray.data.shards import check_shards, read_manifest
from fusionray.environment import resolve_location
from fusionray.errors import ShardMismatch
from fusionray.ray_cluster.progress import ProgressHandle
from fusionray.shard_task import GROUP_NAMES
from fusionray.storage import filesystem as storage
from fusionray.tracking.runs import closed_run, open_run
from fusionray.tracking.store import tracking_uri
from fusionray.training.config import PRESET_PREFIX, SYNTHETIC_PREFIX, TrainConfig
from fusionray.training.run.driver import is_complete, run_workers
from fusionray.training.run.resume_guard import check_resume, guard_resume, read_run_record
from fusionray.training.run.task import WorkerTask


@dataclass(frozen=True)
class TrainResult:
    """The result of a finished run; `metrics` are those of its last checkpoint."""

    run_folder: str
    checkpoint: str
    images_seen: int
    seconds: float
    metrics: dict[str, float]
    tracking_uri: str
    tracking_run: str


def train(config: TrainConfig, *, progress: ProgressHandle | None = None, parent_run: str | None = None) -> TrainResult:
    """Train a recipe on the connected Ray cluster, from the last checkpoint of the same run if there is one.

    `progress`: receives progress and validation metrics; without it, a progress bar is drawn. If a stop is requested on
    it, the run ends early with a checkpoint. `parent_run`: ID of the MLflow run that contains this one.

    Raises: any FusionRayError of its parts; TrainingFailed when workers fail for good, RunStopped after a SIGTERM.
    """
    config = resolve_shards(resolve_output(config))
    run_folder = storage.join(config.run.output, config.run.name)
    former = read_run_record(run_folder)
    manifest, family = read_manifest(config.data.shards), config.family
    # A new run needs all of its files; a resumed run tolerates files that were damaged since.
    for complaint in check_shards(
        config.data.shards,
        manifest,
        size=config.data.size,
        task=family.task,
        template=config.data.template,
        with_parameters=family.needs_parameters(config.recipe),
        max_damaged_files=config.data.max_damaged_files if former else 0,
    ):
        tqdm.write(f"train {config.run.name}: {complaint}; continuing without it", file=sys.stderr)
    train = manifest.splits.get("train")
    count = 0 if train is None else train.identities
    if count < 2:
        shown = GROUP_NAMES[family.task]
        raise ShardMismatch(f"{config.data.shards}: has {count} {shown} in the train split; training needs at least 2")
    labels = read_labels(config.data.shards, manifest) if family.sized_by_people else None
    # Before the dependencies, which may train for hours.
    check_resume(run_folder, config, manifest)
    dependencies = load_dependencies(config)
    guard_resume(run_folder, config, manifest)
    uri = tracking_uri(config.tracking.uri, config.run.output)
    settings = config.model_dump(mode="json")
    run_id = open_run(
        uri,
        config.tracking.experiment,
        config.run.name,
        settings,
        # Several outputs may have a run of this name; one that was deleted and begun anew has curves of its own.
        key=f"train {run_folder}",
        parent=parent_run,
        fresh=former is None,
    )
    with closed_run(uri, run_id):
        if is_complete(run_folder, config.budget):
            tqdm.write(f"train {config.run.name}: {run_folder} is complete; nothing to do", file=sys.stderr)
        else:
            fencing_token = take_fencing_token(run_folder)
            run_workers(
                WorkerTask(config, manifest, run_folder, labels, dependencies, run_id, uri, fencing_token), progress
            )
    checkpoint = find_checkpoint(run_folder)
    info = read_info(checkpoint)
    return TrainResult(run_folder, checkpoint, info.images_seen, info.seconds, info.metrics, uri, run_id)


def resolve_output(config: TrainConfig) -> TrainConfig:
    """Make the paths of a run absolute: workers have other working folders.

    Raises: CheckpointMissing if `run.start_from` has no checkpoint, and the run neither.
    """
    output = resolve_location(config.run.output)
    start = config.run.start_from
    if start is not None:
        start = resolve_location(start)
        if newest_checkpoint(storage.join(output, config.run.name)) is None:
            find_checkpoint(start)  # fail before any worker starts
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
    """Prepare the synthetic dataset if `data.shards` is `synthetic://...`; a second call finds it prepared."""
    if not config.data.shards.startswith(SYNTHETIC_PREFIX):
        return config
    folder = storage.join(config.run.output, "shards")
    data = config.data
    prepare(
        PrepareConfig(input=data.shards, output=folder, task=config.family.task, size=data.size, template=data.template)
    )
    return config.model_copy(update={"data": config.data.model_copy(update={"shards": folder})})


def load_dependencies(config: TrainConfig) -> dict[str, Any]:
    """Load the trained networks that a recipe needs, by the key of the setting that names each; train presets first.

    Raises: CheckpointMissing, ValueError for networks that do not fit together, and as `train`.
    """
    family = config.family
    loaded = {
        key: family.load_dependency(key, ensure_trained(config, place))
        for key, place in family.dependencies(config).items()
    }
    family.check_dependencies(config, loaded)
    return loaded


def ensure_trained(config: TrainConfig, location: str) -> str:
    """Return the checkpoint or file of a network that a run needs; `preset:NAME` is trained first, in the same output.

    Raises: CheckpointMissing, and as `train`.
    """
    if location.startswith(PRESET_PREFIX):
        return train_dependency(config, location.removeprefix(PRESET_PREFIX)).checkpoint
    return find_dependency(location)


def train_dependency(config: TrainConfig, preset: str) -> TrainResult:
    """Train a preset that a run depends on, such as an identity encoder.

    Raises: as `train`.
    """
    return train(configure_dependency(config, preset))


def configure_dependency(config: TrainConfig, preset: str) -> TrainConfig:
    """Configure a preset for the data, output and workers of another run; the new run has the preset's name.

    Its seed is its own: runs of several seeds share the networks that they depend on.

    Raises: ConfigInvalid.
    """
    tree = read_preset(preset)
    # A run on single faces draws no pairs; a different same_identity_ratio must not make it a different run.
    tree["data"] = {**config.data.model_dump(exclude={"same_identity_ratio"}), **tree.get("data", {})}
    tree["run"] = {"name": preset, "output": config.run.output, **tree.get("run", {})}
    tree["workers"] = config.workers.model_dump()
    tree["tracking"] = config.tracking.model_dump()
    return validate(TrainConfig, tree, f"preset {preset}")
