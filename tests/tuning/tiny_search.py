"""Searches over a minimal training: an identity encoder on a few hundred noise pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fusionray.config import load_config, merge_trees, validate
from fusionray.tuning.config import TuneConfig
from fusionray.tuning.plan import SearchPlan
from fusionray.tuning.records import Status, TrialRecord, TrialReport
from fusionray.tuning.space import configure
from tests.support.tiny_fusion import ENCODER, build_config, save_encoder
from tests.support.tiny_fusion import SIZE as FUSION_SIZE
from tests.support.tiny_shards import SIZE, write_tiny_shards
from tests.support.tiny_world import write_world

METRIC = "verification_auc"
RATE = "recipe.optimizer.base_lr"
GENERATOR_RATE = "recipe.generator_optimizer.base_lr"
BATCH = "engine.global_batch"
EVERY = 64


def tiny_tree(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return the settings of a search in `folder`, and write its shards if they do not exist."""
    shards = folder / "shards"
    if not shards.exists():
        write_tiny_shards(shards)
    train = {
        "preset": "identity-small",
        "data": {"shards": str(shards), "size": SIZE, "shuffle_buffer_rows": 16, "validation_images": 12},
        "recipe": {"encoder": ENCODER.model_dump(mode="json"), "optimizer": {"base_lr": 1e-3}},
        "engine": {"global_batch": 8, "schedule": {"warmup_images": 0}},
        "budget": {
            "images": 2 * EVERY,
            "max_seconds": None,
            "checkpoint_every_images": EVERY,
            "log_every_images": EVERY,
            "validate_every_images": EVERY,
        },
        "workers": {"cpus_per_worker": 0.5, "threads": 1, "bind": False, "warm_spares": False},
    }
    tree = {
        "name": "tiny",
        "output": str(folder / "runs"),
        "train": train,
        "space": {RATE: {"loguniform": [1e-4, 1e-2]}, BATCH: {"choice": [8, 16]}},
        "search": "random",
        "trials": 2,
        "metric": METRIC,
        "mode": "max",
    }
    return merge_trees(tree, changes)


def write_search(folder: Path, **changes: Any) -> Path:
    """Write the settings of a search as a file."""
    path = folder / "search.yaml"
    path.write_text(yaml.safe_dump(tiny_tree(folder, **changes)))
    return path


def build_fusion_search(folder: Path, *, rate: float, **changes: Any) -> TuneConfig:
    """Build a search over the generator's rate of the smallest fusion, by rendered truth; `rate` is the default."""
    write_world(folder / "shards")
    save_encoder(folder / "encoder")
    weights = {"truth": 25.0, "adversarial": 0.0, "feature_matching": 0.0, "gradient_penalty": 0.0}
    recipe = build_config(weights, identity_encoder=str(folder / "encoder")).model_dump(mode="json")
    recipe["generator_optimizer"] = {"kind": "adamw", "base_lr": rate}
    tree = tiny_tree(folder, **merge_trees(changes, {"train": {"preset": "tiny-64", "data": {"size": FUSION_SIZE}}}))
    tree["train"]["recipe"] = recipe
    tree["space"] = {GENERATOR_RATE: {"loguniform": [1e-9, 1e-2]}}
    return validate(TuneConfig, tree, "tests")


def build_search(folder: Path, **changes: Any) -> TuneConfig:
    """Build the settings of a search."""
    return load_config(TuneConfig, file=write_search(folder, **changes))


def build_plan(folder: Path, **changes: Any) -> SearchPlan:
    """Build a plan as `open_search` would, without its trainings and its tracker."""
    from fusionray.tuning.driver import resolve_train

    config = build_search(folder, **changes)
    search = folder / "runs" / config.name
    search.mkdir(parents=True, exist_ok=True)
    store = {"tracking": {"uri": f"sqlite:///{folder}/mlflow.db"}}
    train = configure(resolve_train(config), {}, {}, "train")
    train = train.model_validate(merge_trees(train.model_dump(mode="json"), store))
    return SearchPlan(config, train, str(search), "parent")


def build_record(
    number: int, status: Status, values: list[float], settings: dict[str, Any] | None = None
) -> TrialRecord:
    """Build a trial that reported values, EVERY images apart."""
    name = f"tiny-{number:03d}"
    reports = tuple(
        TrialReport(images=EVERY * (index + 1), value=value, run=f"/runs/{name}", metrics={METRIC: value})
        for index, value in enumerate(values)
    )
    chosen = settings or {RATE: 1e-3 * (number + 1), BATCH: 8 if number % 2 else 16}
    return TrialRecord(name=name, number=number, settings=chosen, status=status, reports=reports)
