"""The name of a run: with which settings it was started, so that the same command goes on and another is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fusionray.data.shards import Manifest
from fusionray.errors import ConfigInvalid
from fusionray.storage import filesystem as storage
from fusionray.training.config import TrainConfig

CONFIG_NAME = "config.json"
# What may differ when a run goes on: how long it is, and how and by how many it is computed; not what is learned.
CHANGEABLE = (
    ("budget",),
    ("validation",),
    ("workers",),
    ("tracking",),
    ("data", "decode_threads"),
    ("data", "prefetch_batches"),
    ("data", "timeout_seconds"),
    ("data", "max_damaged_files"),
    ("data", "validation_images"),
    *(
        ("engine", name)
        for name in ("precision", "batch_size", "memory_share", "memory_gib", "channels_last", "compile", "recompute")
    ),
    ("engine", "parallel"),
)


def read_run_record(run_folder: str) -> dict[str, Any] | None:
    """Read what a run was started with; None where there is no run."""
    location = storage.join(run_folder, CONFIG_NAME)
    if not storage.exists(location):
        return None
    stored: dict[str, Any] = json.loads(storage.read_bytes(location))
    return stored


def guard_resume(run_folder: str, config: TrainConfig, manifest: Manifest, people: Sequence[str]) -> None:
    """Store the configuration with the run, and whom it learns from, or check that a run of this name is the same one.

    Raises: ConfigInvalid naming the first setting that differs.
    """
    wanted = {"config": config.model_dump(mode="json"), "data_digest": manifest.digest(), "people": list(people)}
    location = storage.join(run_folder, CONFIG_NAME)
    former = read_run_record(run_folder)
    if former is not None:
        difference = first_difference(comparable(former), comparable(wanted))
        if difference:
            raise ConfigInvalid(
                f"run '{config.run.name}' in {config.run.output} was started with another {difference}; "
                "choose another run.name, or go back to the former setting"
            )
    storage.write_atomic(location, json.dumps(wanted, indent=1).encode())


def comparable(stored: dict[str, Any]) -> dict[str, Any]:
    """Leave out of a stored configuration what may change."""
    config = stored["config"]
    for path in CHANGEABLE:
        config = without(config, path)
    return {**config, "data_digest": stored["data_digest"]}


def without(tree: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Copy a tree without what lies at a path."""
    first, *others = path
    if not others:
        return {key: value for key, value in tree.items() if key != first}
    return {**tree, first: without(tree.get(first, {}), tuple(others))}


def first_difference(former: Any, wanted: Any, path: str = "") -> str:
    """Describe the first setting that two trees disagree on; empty if there is none."""
    if isinstance(former, dict) and isinstance(wanted, dict):
        for key in sorted(former.keys() | wanted.keys()):
            found = first_difference(former.get(key), wanted.get(key), f"{path}.{key}" if path else key)
            if found:
                return found
        return ""
    return "" if former == wanted else f"{path} ({former} before, {wanted} now)"
