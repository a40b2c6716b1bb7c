"""The search stage: prepare what the trials share, run them on Ray Tune, write the results; a repeated call resumes.

`jobs/tune_driver.py` shows the steps of `tune` as a script to copy and change.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray.tune
from ray.exceptions import RayError
from ray.tune import CheckpointConfig, FailureConfig, RunConfig, TuneError, Tuner
from ray.tune import TuneConfig as RayTuneConfig
from tqdm import tqdm

from fusionray.config import hide_passwords, merge_trees, read_preset, replace_setting, validate
from fusionray.environment import resolve_location
from fusionray.errors import ConfigInvalid, RunStopped, TrainingFailed
from fusionray.ray_cluster.connection import count_gpus, require_cluster
from fusionray.ray_cluster.progress import ProgressHandle
from fusionray.storage import filesystem as storage
from fusionray.tracking.runs import open_run
from fusionray.tracking.store import tracking_uri
from fusionray.training.config import TrainConfig
from fusionray.training.run.resume_guard import CHANGEABLE, first_difference, without
from fusionray.training.train import ensure_trained, resolve_output, resolve_shards
from fusionray.tuning.config import TuneConfig
from fusionray.tuning.monitor import SearchMonitor, stop_on_signals
from fusionray.tuning.plan import TRIALS_FOLDER, SearchPlan, describe_gpu_shortage, search_folder, share_cores
from fusionray.tuning.population import check_population
from fusionray.tuning.records import DONE_STATUSES, SearchRecords
from fusionray.tuning.result import SearchResult, conclude
from fusionray.tuning.search import TrialSearcher, build_scheduler
from fusionray.tuning.space import check_space
from fusionray.tuning.trial import FusionTrial

SETTINGS_NAME = "search.json"
TUNE_FOLDER = "tune"
# Settings that may change when a search continues: its size, but not its trials.
CHANGEABLE_SEARCH = (
    "output",
    "trials",
    "max_concurrent_trials",
    "max_minutes",
    "max_failures",
    "register_as",
    "alias",
    "train",
)
# A run may continue with another budget or validation; in a search, the trials would no longer be comparable.
FIXED_OF_TRIALS = (("budget",), ("validation",), ("data", "validation_images"))
# A member's checkpoint is copied while the member continues to train, and must not be deleted in the meantime.
KEPT_CHECKPOINTS = 4
# The same for Tune's pointers to the checkpoints.
KEPT_POINTERS = 8


def tune(config: TuneConfig) -> SearchResult:
    """Search on the connected Ray cluster; continue an earlier call with the same settings.

    Raises: RunStopped after a SIGTERM; ConfigInvalid for an invalid space, or another search of the same name; any
        FusionRayError of a training.
    """
    plan = open_search(config)
    while not is_over(plan):
        with tuner_arguments(plan) as arguments:
            Tuner(**arguments).fit()
        # Members of a population may have waited for members that ended; they continue in the next round.
        if not any(record.status == "running" for record in SearchRecords(plan.folder).trials()):
            break
    return conclude(plan)


def open_search(config: TuneConfig) -> SearchPlan:
    """Prepare what all trials share: folders, shards, encoders, and the tracking run that contains theirs.

    Raises: ConfigInvalid; any FusionRayError of `prepare` and of the trainings of encoders.
    """
    config = config.model_copy(update={"output": resolve_location(config.output)})
    train = resolve_train(config)
    check_space(config.space, train)
    if config.search == "pbt":
        check_population(config.space, train)
    if config.search != "pbt" and config.asha is not None and config.asha.grace_images > train.budget.images:
        raise ConfigInvalid(
            f"asha.grace_images={config.asha.grace_images} is more than a trial has "
            f"(train.budget.images={train.budget.images}); lower it"
        )
    folder = search_folder(config)
    # Before the shards and encoders, which may take an hour.
    uri = tracking_uri(train.tracking.uri, config.output, setting="train.tracking.uri", place="output")
    store_or_compare(folder, config, train)
    train = prepare_trials(config, train, folder, uri)
    shortage = describe_gpu_shortage(train.workers, config.max_concurrent_trials, count_gpus())
    if shortage:
        tqdm.write(f"tune {config.name}: {shortage}", file=sys.stderr)
    experiment = train.tracking.experiment
    # Before any trial: processes that open a new SQLite store at once fail in its migrations.
    parent = open_run(uri, experiment, config.name, config.model_dump(mode="json"), key=f"search {folder}")
    return SearchPlan(config, train, folder, parent)


def resolve_train(config: TuneConfig) -> TrainConfig:
    """Build the configuration of the training that every trial starts from.

    Raises: ConfigInvalid naming the key below `train`.
    """
    tree = dict(config.train)
    preset = tree.pop("preset", None)
    tree = merge_trees(read_preset(str(preset)), tree) if preset else tree
    tree = merge_trees(tree, {"run": {"name": config.name, "output": config.output}})
    return validate(TrainConfig, tree, "train")


def store_or_compare(folder: str, config: TuneConfig, train: TrainConfig) -> None:
    """Store the settings of a new search, or check that an existing search has the same ones.

    Raises: ConfigInvalid naming the first setting that differs.
    """
    trial = train.model_dump(mode="json")
    for path in CHANGEABLE:
        trial = trial if path in FIXED_OF_TRIALS else without(trial, path)
    stored = {**config.model_dump(mode="json", exclude=set(CHANGEABLE_SEARCH)), "train": trial}
    wanted = hide_passwords(stored)
    location = storage.join(folder, SETTINGS_NAME)
    if storage.exists(location):
        difference = first_difference(json.loads(storage.read_bytes(location)), wanted)
        if difference:
            raise ConfigInvalid(
                f"search '{config.name}' in {config.output} was started with another {difference}; choose another "
                "name, or go back to the earlier setting"
            )
        return
    storage.write_atomic(location, json.dumps(wanted, indent=1).encode())


def prepare_trials(config: TuneConfig, train: TrainConfig, folder: str, uri: str) -> TrainConfig:
    """Prepare shards and train encoders once for all trials; return the training that uses them, with a tracker."""
    train = resolve_shards(resolve_output(train))
    for key, location in train.family.dependencies(train).items():
        train = replace_setting(train, key, ensure_trained(train, location))
    budget = train.budget
    if config.search == "pbt":
        budget = budget.model_copy(update={"keep_checkpoints": max(budget.keep_checkpoints, KEPT_CHECKPOINTS)})
    return train.model_copy(
        update={
            "run": train.run.model_copy(update={"output": storage.join(folder, TRIALS_FOLDER)}),
            "budget": budget,
            "tracking": train.tracking.model_copy(update={"uri": uri}),
            "workers": share_cores(
                train.workers, config.max_concurrent_trials, len(os.sched_getaffinity(0)), count_nodes()
            ),
        }
    )


def count_nodes() -> int:
    """Count the nodes of the cluster."""
    require_cluster()
    return sum(bool(node["Alive"]) for node in ray.nodes())


def is_over(plan: SearchPlan) -> bool:
    """Return whether an earlier call finished the search: every trial has ended, or the time is up."""
    records = SearchRecords(plan.folder)
    trials, limit = records.trials(), plan.config.max_minutes
    ended = sum(record.status in DONE_STATUSES for record in trials)
    return ended >= plan.config.trials or (limit is not None and records.spent_seconds() >= limit * 60)


@contextmanager
def tuner_arguments(plan: SearchPlan) -> Iterator[dict[str, Any]]:
    """Build the arguments of a `ray.tune.Tuner`; after the block, delete Tune's own files.

    Raises: RunStopped or KeyboardInterrupt if a signal ended the search; TrainingFailed if Tune or the cluster failed.
    """
    # Tune's log of errors is not needed: the records hold the errors, and the report shows them.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    config = plan.config
    scratch = storage.join(plan.folder, TUNE_FOLDER)
    filesystem, scratch_path = storage.open_filesystem(scratch)
    if storage.exists(scratch):
        storage.delete(scratch)
    stop_handle = ProgressHandle()
    searcher = TrialSearcher(plan)
    monitor = SearchMonitor(plan, stop_handle, searcher)
    try:
        with stop_on_signals(monitor), warnings.catch_warnings():
            # Actors are not reused: a member that continues from another's checkpoint needs new workers.
            warnings.filterwarnings("ignore", message="Consider boosting PBT", category=UserWarning)
            yield {
                "trainable": ray.tune.with_parameters(FusionTrial, plan=plan, stop_handle=stop_handle),
                "tune_config": RayTuneConfig(
                    metric=config.metric, mode=config.mode, search_alg=searcher, scheduler=build_scheduler(plan)
                ),
                "run_config": RunConfig(
                    name=uuid.uuid4().hex,
                    storage_path=scratch_path,
                    # Ours: it finds the endpoint and the credentials as all stages do. Of a folder, Ray makes its own.
                    storage_filesystem=filesystem if "://" in scratch else None,
                    failure_config=FailureConfig(max_failures=config.max_failures),
                    checkpoint_config=CheckpointConfig(num_to_keep=KEPT_POINTERS, checkpoint_at_end=False),
                    callbacks=[monitor],
                    stop=monitor,
                    verbose=0,
                ),
            }
    except (TuneError, RayError) as error:
        raise TrainingFailed(f"search '{config.name}': {str(error).strip().splitlines()[-1]}") from error
    finally:
        monitor.records.write_spent(monitor.spent_seconds)
    monitor.show(final=True)
    stop_handle.close()
    storage.delete(scratch)
    if monitor.signal == signal.SIGINT:
        raise KeyboardInterrupt
    if monitor.signal:
        raise RunStopped(
            f"search '{config.name}' stopped on SIGTERM, its trials with a checkpoint each; the same command continues "
            "it"
        )
