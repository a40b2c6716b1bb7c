"""The resume guard: a run continues only with the settings and the data that it was started with."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from fusionray.config import hide_passwords
from fusionray.data.shards import Manifest
from fusionray.errors import ConfigInvalid
from fusionray.storage import filesystem as storage
from fusionray.training.config import TrainConfig

CONFIG_NAME = "config.json"
# Settings that a resumed run may change: its length, and how and where it is computed; not what it learns.
CHANGEABLE = (
    ("budget",),
    ("validation",),
    ("workers",),
    ("tracking",),
    ("data", "decode"),
    ("data", "decode_threads"),
    ("data", "read_tasks"),
    ("data", "prefetch_batches"),
    ("data", "timeout_seconds"),
    ("data", "max_damaged_files"),
    ("data", "validation_images"),
    *(
        ("engine", name)
        for name in (
            "precision",
            "batch_size",
            "memory_share",
            "memory_gib",
            "channels_last",
            "compile",
            "cuda_graphs",
            "activation_checkpointing",
        )
    ),
    ("engine", "parallel"),
)


def read_run_record(run_folder: str) -> dict[str, Any] | None:
    """Read the settings and the data digest that a run was started with; None if there is no run."""
    location = storage.join(run_folder, CONFIG_NAME)
    if not storage.exists(location):
        return None
    stored: dict[str, Any] = json.loads(storage.read_bytes(location))
    return stored


def guard_resume(run_folder: str, config: TrainConfig, manifest: Manifest) -> None:
    """Store the configuration and the data digest of a new run, or check that they equal those of the existing run.

    Raises: ConfigInvalid, as `check_resume`.
    """
    check_resume(run_folder, config, manifest)
    location = storage.join(run_folder, CONFIG_NAME)
    storage.write_atomic(location, json.dumps(build_record(config, manifest), indent=1).encode())


def check_resume(run_folder: str, config: TrainConfig, manifest: Manifest) -> None:
    """Check that the configuration and the data are those of the existing run, if there is one.

    Raises: ConfigInvalid naming the first setting that differs.
    """
    former = read_run_record(run_folder)
    if former is None:
        return
    former = {**former, "config": fill_defaults(former["config"])}
    difference = first_difference(comparable(former), comparable(build_record(config, manifest)))
    if difference:
        raise ConfigInvalid(
            f"run '{config.run.name}' in {config.run.output} was started with another {difference}; "
            "choose another run.name, or restore the previous setting"
        )


def build_record(config: TrainConfig, manifest: Manifest) -> dict[str, Any]:
    """Build what a run stores of its settings and its data."""
    return {"config": hide_passwords(config.model_dump(mode="json")), "data_digest": manifest.digest()}


def fill_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """Return stored settings with the defaults of those that are newer than the run."""
    try:
        return TrainConfig.model_validate(config).model_dump(mode="json")
    except ValidationError:
        # A setting that is gone: the comparison names it.
        return config


def comparable(stored: dict[str, Any]) -> dict[str, Any]:
    """Return a stored configuration without the settings that may change, and with the data digest."""
    config = stored["config"]
    for path in CHANGEABLE:
        config = without(config, path)
    return {**config, "data_digest": stored["data_digest"]}


def without(tree: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Copy a tree without the subtree at `path`."""
    first, *others = path
    if not others:
        return {key: value for key, value in tree.items() if key != first}
    return {**tree, first: without(tree.get(first, {}), tuple(others))}


def first_difference(former: Any, wanted: Any, path: str = "") -> str:
    """Describe the first setting in which two trees differ; empty if they are equal."""
    if isinstance(former, dict) and isinstance(wanted, dict):
        for key in sorted(former.keys() | wanted.keys()):
            found = first_difference(former.get(key), wanted.get(key), f"{path}.{key}" if path else key)
            if found:
                return found
        return ""
    return "" if former == wanted else f"{path} ({former} before, {wanted} now)"
