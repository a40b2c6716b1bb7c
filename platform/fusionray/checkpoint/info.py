"""Contract 3, the checkpoint: a folder with tensor files and `info.json`, which holds their sizes and hashes.

A run folder holds `checkpoint-<images>/`, each with data files of all ranks (`<save>-<rank>.bin`), their table
(`<save>.tensors.json`, see index.py) and `info.json`. That one is written last and atomically: a folder
without it is a leftover of a crash, and is ignored. This module does not import torch.
"""

from __future__ import annotations

import json
import math
import uuid
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from fusionray import __version__
from fusionray.config import Section
from fusionray.environment import resolve_location
from fusionray.errors import CheckpointDamaged, CheckpointMissing
from fusionray.storage import filesystem as storage

INFO_NAME = "info.json"
OWNER_NAME = "owner"
FOLDER_PREFIX = "checkpoint-"
FORMAT_VERSION: Literal[2] = 2
EARLIER_METADATA = ("identity_encoder", "attribute_reader")


class CheckpointInfo(Section):
    """What a checkpoint is of; enough to rebuild its networks without the run that made it."""

    format_version: Literal[2] = FORMAT_VERSION
    code_version: str = __version__
    config: dict[str, Any] = Field(description="the resolved TrainConfig")
    num_people: int = Field(description="people in the training split (rows of the margin head); 0 for pictures")
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="what rebuilds its networks, besides `config`: RecipeFamily.describe()"
    )
    data_digest: str = Field(description="Manifest.digest() of the shards")
    images_seen: int = Field(ge=0)
    seconds: float = Field(description="training time so far, without start-up")
    metrics: dict[str, float]
    timing: dict[str, float] = Field(
        default_factory=dict,
        description="what steps and saves took lately on rank 0 (StepTimes.metrics()); `fusionray plan` reads it",
    )
    counters: dict[str, int] = Field(default_factory=dict, description="Engine.counters()")
    position: dict[str, Any] | None = Field(None, description="position in the data, as its reader wrote it")
    num_ranks: int = Field(1, description="processes that wrote it; any number may read it")
    files: dict[str, int] = Field(default_factory=dict, description="length of every other file, bytes")
    table: str = Field("", description="name of the file that describes the tensors, with the hash of each part")
    table_sha256: str = ""

    @model_validator(mode="before")
    @classmethod
    def gather_metadata(cls, tree: Any) -> Any:
        """Read what earlier versions wrote as fields of its own."""
        if not isinstance(tree, dict) or not tree.keys() & set(EARLIER_METADATA):
            return tree
        found = {name: tree[name] for name in EARLIER_METADATA if tree.get(name) is not None}
        kept = {name: value for name, value in tree.items() if name not in EARLIER_METADATA}
        return {**kept, "metadata": {**found, **kept.get("metadata", {})}}

    @field_validator("metrics", "timing")
    @classmethod
    def keep_finite(cls, metrics: dict[str, float]) -> dict[str, float]:
        """Leave out what JSON has no number for: the loss of a skipped step must not make a checkpoint unreadable."""
        return {name: value for name, value in metrics.items() if math.isfinite(value)}


def read_info(folder: str) -> CheckpointInfo:
    """Read the description of a checkpoint.

    Raises: CheckpointMissing if there is none that can be understood.
    """
    location = storage.join(folder, INFO_NAME)
    try:
        data = storage.read_bytes(location)
    except FileNotFoundError:
        raise CheckpointMissing(f"{folder}: holds no checkpoint ({INFO_NAME} is missing)") from None
    except OSError as error:
        raise CheckpointMissing(f"{location}: cannot be read ({str(error).splitlines()[0]})") from None
    try:
        tree = json.loads(data)
    except ValueError:
        raise CheckpointMissing(
            f"{location}: is damaged (not JSON); delete {folder} and use the checkpoint before it"
        ) from None
    check_format(tree, location)
    try:
        return CheckpointInfo.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointMissing(
            f"{location}: not a checkpoint of this format ({'.'.join(map(str, first['loc']))}: {first['msg']})"
        ) from None


def check_format(tree: Any, location: str) -> None:
    version = tree.get("format_version") if isinstance(tree, dict) else None
    if version == FORMAT_VERSION:
        return
    if not isinstance(version, int):
        raise CheckpointMissing(f"{location}: not a checkpoint of fusionray (it names no format_version)")
    if version < FORMAT_VERSION:
        raise CheckpointMissing(
            f"{location}: made by an older version of fusionray (format {version}, this one reads {FORMAT_VERSION}); "
            "train again under another run.name, or export it with that version"
        )
    raise CheckpointMissing(
        f"{location}: made by a newer version of fusionray (format {version}, this one reads {FORMAT_VERSION}); update"
    )


def find_checkpoint(location: str) -> str:
    """Resolve a checkpoint folder, or a run folder to its newest whole checkpoint. Paths and URIs alike.

    Raises: CheckpointMissing naming what was looked for.
    """
    if storage.exists(storage.join(location, INFO_NAME)):
        return location.rstrip("/")
    if not storage.exists(location):
        raise CheckpointMissing(f"{location}: no such checkpoint or run folder; train first, or check the path")
    newest = newest_checkpoint(location)
    if newest is None:
        raise CheckpointMissing(
            f"{location}: holds no whole checkpoint; let the run reach its first one (budget.checkpoint_every_images)"
        )
    return newest


def find_dependency(location: str) -> str:
    """Resolve the location of a trained network: as `find_checkpoint`, or a file, which is returned as it is.

    Raises: CheckpointMissing.
    """
    resolved = resolve_location(location)
    return resolved if storage.is_file(resolved) else find_checkpoint(resolved)


def newest_checkpoint(run_folder: str, *, refused: Mapping[str, str] | None = None) -> str | None:
    """Find the newest whole checkpoint of a run; None before the first. Warns of each damaged one that it passes over.

    `refused`: checkpoints that turned out to be damaged when they were read, and what is wrong with each.

    Raises: CheckpointMissing if there are checkpoints and none of them can be used: to start anew would lose the run.
    """
    faults = []
    for folder in list_checkpoints(run_folder):
        if refused is not None and folder in refused:
            faults.append(refused[folder])
            continue
        try:
            check_whole(folder, read_info(folder))
        except CheckpointMissing as error:
            faults.append(str(error))
            continue
        for fault in faults:
            warnings.warn(f"{fault}; passed over for {folder}", RuntimeWarning, stacklevel=2)
        return folder
    if faults:
        raise CheckpointMissing(f"{run_folder}: holds no whole checkpoint; the newest: {faults[0]}")
    return None


def list_checkpoints(run_folder: str) -> list[str]:
    """List the folders of a run that have an `info.json`, newest first; their files may be damaged."""
    return [folder for folder in checkpoint_folders(run_folder) if INFO_NAME in storage.list_folder(folder)]


def checkpoint_folders(run_folder: str) -> Iterator[str]:
    """Yield every folder that a run's writer made, newest first; what a crash left behind as well."""
    for name, length in sorted(storage.list_folder(run_folder).items(), reverse=True):
        if length is None and name.startswith(FOLDER_PREFIX):
            yield storage.join(run_folder, name)


def check_whole(folder: str, info: CheckpointInfo) -> None:
    """Check that every file of a checkpoint is there in its full length; the loading checks the hashes.

    Raises: CheckpointMissing naming the first file at fault.
    """
    found = storage.list_folder(folder)
    for name, length in info.files.items():
        if found.get(name) != length:
            state = "is missing" if found.get(name) is None else f"has {found[name]} bytes of {length}"
            raise damaged(folder, name, state)


def damaged(folder: str, name: str, state: str) -> CheckpointDamaged:
    """Word the refusal of a file of a checkpoint."""
    return CheckpointDamaged(
        f"{storage.join(folder, name)}: {state}, so the checkpoint is damaged; delete {folder} and use the one before "
        "it, or train again"
    )


def checkpoint_name(images_seen: int) -> str:
    """Name a checkpoint so that names sort by progress."""
    return f"{FOLDER_PREFIX}{images_seen:012d}"


def copy_checkpoint(checkpoint: str, run_folder: str) -> str:
    """Copy a checkpoint into another run, which then continues from it; return the copy's folder.

    The description comes last: a copy that was cut short is none.

    Raises: CheckpointMissing if there is none, or a file of it is not there in full length.
    """
    info = read_info(checkpoint)
    check_whole(checkpoint, info)
    copy = storage.join(run_folder, checkpoint_name(info.images_seen))
    for name in info.files:
        storage.copy(storage.join(checkpoint, name), storage.join(copy, name))
    storage.write_atomic(storage.join(copy, INFO_NAME), storage.read_bytes(storage.join(checkpoint, INFO_NAME)))
    return copy


def take_fencing_token(run_folder: str) -> str:
    """Make the caller's start of a run the one that counts; returns its token.

    Workers of a killed driver may live on for a while: what they still save must not lie among the new checkpoints.
    """
    token = uuid.uuid4().hex
    storage.write_atomic(storage.join(run_folder, OWNER_NAME), token.encode())
    return token


def is_owner(run_folder: str, token: str) -> bool:
    """Tell whether the start with this token is still the one that counts."""
    return storage.read_bytes(storage.join(run_folder, OWNER_NAME)).decode() == token


def retain(run_folder: str, *, keep: int, best_metric: str | None, best_mode: Literal["highest", "lowest"]) -> None:
    """Delete what a run needs no more: all but its newest whole checkpoints and the best one, and leftovers of crashes.

    A folder whose description cannot be understood (damaged, or of another version) is not ours to delete.
    """
    whole: dict[str, CheckpointInfo] = {}
    removable = []
    for folder in checkpoint_folders(run_folder):
        try:
            info = read_info(folder)
            removable.append(folder)
            check_whole(folder, info)
            whole[folder] = info
        except CheckpointMissing:
            if INFO_NAME not in storage.list_folder(folder):
                removable.append(folder)
    kept = set(list(whole)[:keep])
    if best_metric is not None:
        measured = {folder: info.metrics[best_metric] for folder, info in whole.items() if best_metric in info.metrics}
        choose = max if best_mode == "highest" else min
        # Of equal ones the oldest, which comes last: a checkpoint has the metrics of the last validation before it, so
        # those after it were never measured.
        kept |= {choose(reversed(measured), key=lambda folder: measured[folder])} if measured else set()
    for folder in dict.fromkeys(removable):
        if folder not in kept:
            delete_checkpoint(folder)
    for folder in kept:
        delete_unnamed(folder, whole[folder])


def delete_checkpoint(folder: str) -> None:
    """Delete a checkpoint, its description first: a crash in between leaves nothing that could be taken for one."""
    location = storage.join(folder, INFO_NAME)
    if storage.exists(location):
        storage.delete(location)
    storage.delete(folder)


def delete_unnamed(folder: str, info: CheckpointInfo) -> None:
    """Delete the files of a crashed earlier attempt at the same checkpoint."""
    for name in storage.list_folder(folder):
        if name != INFO_NAME and name not in info.files:
            storage.delete(storage.join(folder, name))
