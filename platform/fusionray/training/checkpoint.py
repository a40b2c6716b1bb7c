"""Contract 3, the checkpoint: a folder with `state.pt` (tensors) and `info.json` (what they belong to).

`info.json` records the length and hash of `state.pt`, so that a half-copied checkpoint is recognised and passed over.
"""

from __future__ import annotations

import hashlib
import math
import pickle
from pathlib import Path
from typing import Any, Literal

import torch
from pyarrow import fs
from pydantic import Field, ValidationError, field_validator

from fusionray import __version__
from fusionray.config import Section
from fusionray.data import storage
from fusionray.errors import CheckpointMissing

STATE_NAME = "state.pt"
INFO_NAME = "info.json"
FORMAT_VERSION: Literal[1] = 1


class CheckpointInfo(Section):
    """What a checkpoint is of; enough to rebuild its networks without the run that made it."""

    format_version: Literal[1] = FORMAT_VERSION
    code_version: str = __version__
    config: dict[str, Any] = Field(description="the resolved TrainConfig")
    num_people: int = Field(description="people in the training split (rows of the margin head)")
    identity_encoder: dict[str, Any] | None = Field(None, description="config of the frozen encoder, if there is one")
    data_digest: str = Field(description="Manifest.digest() of the shards")
    images_seen: int
    seconds: float = Field(description="training time so far, without start-up")
    metrics: dict[str, float]
    state_bytes: int = 0
    state_sha256: str = ""

    @field_validator("metrics")
    @classmethod
    def keep_finite(cls, metrics: dict[str, float]) -> dict[str, float]:
        """Leave out what JSON has no number for: the loss of a skipped step must not make a checkpoint unreadable."""
        return {name: value for name, value in metrics.items() if math.isfinite(value)}


def save_checkpoint(folder: Path, state: dict[str, Any], info: CheckpointInfo) -> None:
    """Write a checkpoint into a folder; the description last, since it vouches for the state."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / STATE_NAME
    torch.save(state, path)
    described = info.model_copy(update={"state_bytes": path.stat().st_size, "state_sha256": hash_file(path)})
    storage.write_atomic(str(folder / INFO_NAME), described.model_dump_json(indent=1).encode())


def load_checkpoint(folder: Path) -> tuple[CheckpointInfo, dict[str, Any]]:
    """Read a checkpoint from a local folder, on the CPU; never runs code from the file.

    Raises: CheckpointMissing if there is none, or it is damaged or of another format.
    """
    info = read_info(folder)
    path = folder / STATE_NAME
    if not path.is_file() or path.stat().st_size != info.state_bytes or hash_file(path) != info.state_sha256:
        raise CheckpointMissing(f"{path}: is missing or damaged; use an older checkpoint or train again")
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise CheckpointMissing(
            f"{path}: holds something other than tensors and plain values ({str(error).splitlines()[0]}); "
            "it was not loaded, since it could run code: use a checkpoint that fusionray wrote"
        ) from None
    return info, state


def read_info(folder: Path) -> CheckpointInfo:
    """Read the description of a checkpoint.

    Raises: CheckpointMissing if there is none that can be understood.
    """
    path = folder / INFO_NAME
    try:
        return CheckpointInfo.model_validate_json(path.read_bytes())
    except OSError:
        raise CheckpointMissing(f"{folder}: holds no checkpoint ({INFO_NAME} is missing)") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointMissing(
            f"{path}: not a checkpoint of this format ({'.'.join(map(str, first['loc']))}: {first['msg']})"
        ) from None


def find_checkpoint(location: str) -> Path:
    """Resolve a checkpoint folder or a run folder (its newest whole checkpoint) to a local checkpoint folder.

    Raises: CheckpointMissing naming what was looked for.
    """
    if not storage.exists(location):
        raise CheckpointMissing(f"{location}: no such checkpoint or run folder; train first, or check the path")
    filesystem, root = storage.open_filesystem(location)
    if not isinstance(filesystem, fs.LocalFileSystem):
        raise CheckpointMissing(f"{location}: copy the checkpoint to this machine first")
    folder = Path(root)
    if (folder / INFO_NAME).is_file():
        return folder
    candidates = sorted((path.parent for path in folder.glob(f"checkpoint-*/{INFO_NAME}")), reverse=True)
    for candidate in candidates:
        if is_whole(candidate):
            return candidate
    raise CheckpointMissing(f"{folder}: holds no whole checkpoint; let the run reach its first one (checkpoint_images)")


def is_whole(folder: Path) -> bool:
    """Tell whether a checkpoint's description can be read and its state has the promised length."""
    try:
        info = read_info(folder)
    except CheckpointMissing:
        return False
    state = folder / STATE_NAME
    return state.is_file() and state.stat().st_size == info.state_bytes


def checkpoint_name(images_seen: int) -> str:
    """Name a checkpoint so that names sort by progress."""
    return f"checkpoint-{images_seen:012d}"


def hash_file(path: Path) -> str:
    """Hash a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
