"""The tune stage: settle what trials share, let Ray Tune run them, conclude. The same call goes on where it stopped.

`jobs/tune_driver.py` is `tune` written out, to be copied and changed.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray.tune
from ray.exceptions import RayError
from ray.tune import CheckpointConfig, FailureConfig, RunConfig, TuneError, Tuner
from ray.tune import TuneConfig as RayTuneConfig

from fusionray.config import merge_trees, read_preset, replace_setting, validate
from fusionray.environment import resolve_location
from fusionray.errors import ConfigInvalid, RunStopped, TrainingFailed
from fusionray.ray_cluster.progress import ProgressHandle
from fusionray.storage import filesystem as storage
from fusionray.tracking import open_run, tracking_uri
from fusionray.training.config import TrainConfig
from fusionray.training.run.resume_guard import CHANGEABLE, first_difference, without
from fusionray.training.train import ensure_trained, resolve_output, resolve_shards
from fusionray.tuning.config import TuneConfig
from fusionray.tuning.monitor import Watch, signals_end
from fusionray.tuning.outcome import SearchResult, conclude
from fusionray.tuning.plan import TRIALS_FOLDER, SearchPlan, search_folder, share_cores
from fusionray.tuning.records import DONE, Records
from fusionray.tuning.search import TrialSearcher, build_scheduler
from fusionray.tuning.space import check_space
from fusionray.tuning.trial import FusionTrial

CLAIM_NAME = "search.json"
TUNE_FOLDER = "tune"
# What may differ when a search goes on: how much of it there is, not what its trials are.
CHANGEABLE_SEARCH = ("output", "trials", "at_once", "max_minutes", "max_failures", "register_as", "alias", "train")
# A run may get another budget or other judges when it goes on; trials would no longer be comparable.
KEPT_OF_TRIALS = (("budget",), ("validation",), ("data", "validation_images"))
# A member's checkpoint is copied while the member trains on, and must not be deleted meanwhile.
KEPT_CHECKPOINTS = 4
# The same of Tune's pointers to them.
KEPT_POINTERS = 8


def tune(config: TuneConfig) -> SearchResult:
    """Search on the connected Ray cluster, from where an earlier call with the same settings came.

    Raises: RunStopped after a SIGTERM; ConfigInvalid for a space that is none, or another search of the same name;
        any FusionRayError of a training.
    """
    plan = open_search(config)
    while not is_over(plan):
        with trials_of(plan) as parts:
            Tuner(**parts).fit()
        # Members that were left waiting for others that had ended go on by themselves.
        if not any(record.status == "running" for record in Records(plan.folder).trials()):
            break
    return conclude(plan)


def open_search(config: TuneConfig) -> SearchPlan:
    """Settle what all trials share: places, shards, encoders, the run that theirs are nested in.

    Raises: ConfigInvalid; any FusionRayError of `prepare` and of the trainings of encoders.
    """
    config = config.model_copy(update={"output": resolve_location(config.output)})
    train = resolve_train(config)
    check_space(config.space, train)
    folder = search_folder(config)
    claim_search(folder, config, train)
    train = prepare_trials(config, train, folder)
    uri = tracking_uri(train.tracking.uri, config.output)
    experiment = train.tracking.experiment
    # Before any trial: several processes that open a fresh SQLite store die in its migrations.
    parent = open_run(uri, experiment, config.name, config.model_dump(mode="json"), key=f"search {folder}")
    return SearchPlan(config, train, folder, parent)


def resolve_train(config: TuneConfig) -> TrainConfig:
    """Read the training that every trial starts from.

    Raises: ConfigInvalid naming the key below `train`.
    """
    tree = dict(config.train)
    preset = tree.pop("preset", None)
    tree = merge_trees(read_preset(str(preset)), tree) if preset else tree
    tree = merge_trees(tree, {"run": {"name": config.name, "output": config.output}})
    return validate(TrainConfig, tree, "train")


def claim_search(folder: str, config: TuneConfig, train: TrainConfig) -> None:
    """Store the settings with the search, or check that a search of this name is the same one.

    Raises: ConfigInvalid naming the first setting that differs.
    """
    trial = train.model_dump(mode="json")
    for path in CHANGEABLE:
        trial = trial if path in KEPT_OF_TRIALS else without(trial, path)
    wanted = {**config.model_dump(mode="json", exclude=set(CHANGEABLE_SEARCH)), "train": trial}
    location = storage.join(folder, CLAIM_NAME)
    if storage.exists(location):
        difference = first_difference(json.loads(storage.read_bytes(location)), wanted)
        if difference:
            raise ConfigInvalid(
                f"search '{config.name}' in {config.output} was started with another {difference}; choose another "
                "name, or go back to the former setting"
            )
        return
    storage.write_atomic(location, json.dumps(wanted, indent=1).encode())


def prepare_trials(config: TuneConfig, train: TrainConfig, folder: str) -> TrainConfig:
    """Prepare shards, and train what the trials depend on once, beside the search, so that they find it done."""
    train = resolve_shards(resolve_output(train))
    for key, place in train.family.dependencies(train).items():
        train = replace_setting(train, key, ensure_trained(train, place))
    budget = train.budget
    if config.search == "pbt":
        budget = budget.model_copy(update={"keep_checkpoints": max(budget.keep_checkpoints, KEPT_CHECKPOINTS)})
    uri = tracking_uri(train.tracking.uri, config.output)
    return train.model_copy(
        update={
            "run": train.run.model_copy(update={"output": storage.join(folder, TRIALS_FOLDER)}),
            "budget": budget,
            "tracking": train.tracking.model_copy(update={"uri": uri}),
            "workers": share_cores(train.workers, config.at_once, len(os.sched_getaffinity(0)), count_nodes()),
        }
    )


def count_nodes() -> int:
    """Count the nodes of the cluster."""
    return sum(bool(node["Alive"]) for node in ray.nodes())


def is_over(plan: SearchPlan) -> bool:
    """Tell whether an earlier start came to the end: every trial ended, or the time is spent."""
    records = Records(plan.folder)
    trials, limit = records.trials(), plan.config.max_minutes
    ended = sum(record.status in DONE for record in trials)
    return ended >= plan.config.trials or (limit is not None and records.spent_seconds() >= limit * 60)


@contextmanager
def trials_of(plan: SearchPlan) -> Iterator[dict[str, Any]]:
    """Give a `ray.tune.Tuner` all that it needs; after the block what Tune itself keeps of it is deleted.

    Raises: RunStopped or KeyboardInterrupt if a signal ended the search; TrainingFailed if Tune or the cluster did.
    """
    # Why a trial failed stands in its records, and is told at the end.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    config = plan.config
    scratch = storage.join(plan.folder, TUNE_FOLDER)
    if storage.exists(scratch):
        storage.delete(scratch)
    halting = ProgressHandle()
    proposals = TrialSearcher(plan)
    watch = Watch(plan, halting, proposals)
    try:
        with signals_end(watch), warnings.catch_warnings():
            # Actors are not used again: a member that goes on from another's checkpoint needs workers of its own.
            warnings.filterwarnings("ignore", message="Consider boosting PBT", category=UserWarning)
            yield {
                "trainable": ray.tune.with_parameters(FusionTrial, plan=plan, halting=halting),
                "tune_config": RayTuneConfig(
                    metric=config.metric, mode=config.mode, search_alg=proposals, scheduler=build_scheduler(plan)
                ),
                "run_config": RunConfig(
                    name=uuid.uuid4().hex,
                    storage_path=scratch,
                    failure_config=FailureConfig(max_failures=config.max_failures),
                    checkpoint_config=CheckpointConfig(num_to_keep=KEPT_POINTERS, checkpoint_at_end=False),
                    callbacks=[watch],
                    stop=watch,
                    verbose=0,
                ),
            }
    except (TuneError, RayError) as error:
        raise TrainingFailed(f"search '{config.name}': {str(error).strip().splitlines()[-1]}") from error
    finally:
        watch.records.write_spent(watch.spent_seconds)
    watch.show(final=True)
    halting.close()
    storage.delete(scratch)
    if watch.signal == signal.SIGINT:
        raise KeyboardInterrupt
    if watch.signal:
        raise RunStopped(
            f"search '{config.name}' was told to end (SIGTERM) and did, its trials with a checkpoint; the same command "
            "goes on"
        )
