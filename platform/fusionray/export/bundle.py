"""Contract 4, the bundle: the folder that leaves training and enters serving.

    generator.onnx   source [N,L], target [N,3,S,S] -> output [N,3,S,S], mask [N,1,S,S]
    identity.onnx    input [N,3,112,112] -> source [N,L]
    bundle.json      what the two compute, where they come from, and the sha256 of each file

A source is read once and drawn from as often as one likes. Its first 512 values are the identity embedding, of unit
length; what follows, if anything, is what the generator of the same bundle looks up in the source's picture.

A bundle appears under its name whole or not at all, and is read only after every hash has been checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from fusionray.config import Section
from fusionray.errors import BundleInvalid

FORMAT_VERSION: Literal[1] = 1
DESCRIPTION_NAME = "bundle.json"
GENERATOR_NAME = "generator.onnx"
IDENTITY_NAME = "identity.onnx"
REQUIRED_FILES = (GENERATOR_NAME, IDENTITY_NAME)
EMBEDDING_LENGTH = 512
IDENTITY_SIZE = 112

Meaning = Literal["source", "picture", "mask"]


class TensorDescription(Section):
    """What one input or output of a model holds.

    `shape` uses names for sizes that vary. A `picture` is RGB, a `source` begins with a unit-length embedding;
    values lie in `minimum..maximum`.
    """

    meaning: Meaning
    shape: tuple[int | str, ...]
    minimum: float
    maximum: float

    @model_validator(mode="after")
    def check_range(self) -> TensorDescription:
        if not self.minimum < self.maximum:
            raise ValueError(f"minimum {self.minimum} must lie below maximum {self.maximum}")
        return self


class Lineage(Section):
    """Where a model comes from: the digest of its data, its resolved configuration, the code, and how it scored."""

    data_manifest: str
    config: dict[str, Any]
    code_version: str
    metrics: dict[str, float] = Field(default_factory=dict)


class Parity(Section):
    """How far the exported models are from the trained ones: largest absolute difference, and what was allowed."""

    tolerance: float
    largest_difference: float


class BundleDescription(Section):
    """The content of `bundle.json`. `tensors` maps file name, then input or output name, to its description.

    `name` travels in HTTP headers and registry entries, so it is plain ASCII without spaces.
    """

    format_version: Literal[1] = FORMAT_VERSION
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    size: int = Field(gt=0)
    template: str
    identity_template: Literal["arcface_112"] = "arcface_112"
    tensors: dict[str, dict[str, TensorDescription]]
    licence: str
    lineage: Lineage
    parity: Parity
    files: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True)
class Bundle:
    """A bundle on this machine whose files have been checked."""

    folder: Path
    description: BundleDescription

    @property
    def generator_path(self) -> Path:
        """Locate the generator."""
        return self.folder / GENERATOR_NAME

    @property
    def identity_path(self) -> Path:
        """Locate the identity encoder."""
        return self.folder / IDENTITY_NAME

    @property
    def source_length(self) -> int:
        """Count the values that stand for a source.

        Raises: BundleInvalid if the description gives no number, or fewer than an embedding has.
        """
        length = self.tensor(GENERATOR_NAME, "source").shape[-1]
        if not isinstance(length, int) or length < EMBEDDING_LENGTH:
            raise BundleInvalid(
                f"{self.folder}/{DESCRIPTION_NAME}: 'source' of {GENERATOR_NAME} ends in {length}, not in a number "
                f"from {EMBEDDING_LENGTH} on; export it again"
            )
        return length

    def tensor(self, file: str, name: str) -> TensorDescription:
        """Look up what an input or output holds.

        Raises: BundleInvalid if the description does not mention it.
        """
        try:
            return self.description.tensors[file][name]
        except KeyError:
            raise BundleInvalid(
                f"{self.folder}/{DESCRIPTION_NAME}: `tensors` does not describe '{name}' of {file}; export it again"
            ) from None


def describe_tensors(
    size: int, minimum: float, maximum: float, source_length: int = EMBEDDING_LENGTH
) -> dict[str, dict[str, TensorDescription]]:
    """Describe the tensors of a bundle made here; the generator's pictures lie in `minimum..maximum`."""
    source = TensorDescription(meaning="source", shape=("N", source_length), minimum=-1.0, maximum=1.0)
    picture = TensorDescription(meaning="picture", shape=("N", 3, size, size), minimum=minimum, maximum=maximum)
    mask = TensorDescription(meaning="mask", shape=("N", 1, size, size), minimum=0.0, maximum=1.0)
    crop = TensorDescription(meaning="picture", shape=("N", 3, IDENTITY_SIZE, IDENTITY_SIZE), minimum=-1.0, maximum=1.0)
    return {
        GENERATOR_NAME: {"source": source, "target": picture, "output": picture, "mask": mask},
        IDENTITY_NAME: {"input": crop, "source": source},
    }


def write_bundle(folder: str | Path, files: Mapping[str, bytes | Path], description: BundleDescription) -> Bundle:
    """Write files and description as a bundle, replacing one that is already there.

    `files` maps the names in the bundle to content or to a file to copy; their hashes are filled into the description.
    The bundle is built beside `folder` and renamed into place, so nothing half-written ever bears its name.

    Raises: BundleInvalid if a required file is not given, a name is a path, or `folder` holds something else.
    """
    target = Path(folder).expanduser().absolute()
    missing = [name for name in REQUIRED_FILES if name not in files]
    if missing:
        raise BundleInvalid(f"{target}: a bundle needs {' and '.join(missing)}; hand over what the export made")
    for name in files:
        check_name(name, str(target))
    if target.exists() and not (target / DESCRIPTION_NAME).is_file() and (target.is_file() or any(target.iterdir())):
        raise BundleInvalid(f"{target}: holds something that is not a bundle and is left alone; choose another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.parent / f".{target.name}.{uuid.uuid4().hex}.part"
    staging.mkdir()
    try:
        hashes = {name: store_file(staging / name, content) for name, content in sorted(files.items())}
        complete = description.model_copy(update={"files": hashes})
        text = json.dumps(complete.model_dump(mode="json"), indent=1, sort_keys=True)
        store_file(staging / DESCRIPTION_NAME, f"{text}\n".encode())
        replace_folder(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Bundle(target, complete)


def check_name(name: str, where: str) -> None:
    """Refuse names that would leave the folder or hide the description.

    Raises: BundleInvalid naming the file.
    """
    if name in ("", ".", "..", DESCRIPTION_NAME) or "/" in name or "\\" in name or "\0" in name:
        raise BundleInvalid(f"{where}: '{name}' cannot be the name of a file in a bundle; use a plain file name")


def store_file(path: Path, content: bytes | Path) -> str:
    """Write or copy one file, let it reach the disk, and give its sha256."""
    if isinstance(content, Path):
        shutil.copyfile(content, path)
    else:
        path.write_bytes(content)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return hash_file(path)


def hash_file(path: Path) -> str:
    """Compute the sha256 of a file, in hexadecimal digits, without holding the file in memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace_folder(staging: Path, target: Path) -> None:
    """Rename a finished folder into place; a bundle that was there is moved aside first and then removed."""
    if not target.exists():
        os.rename(staging, target)
        return
    # A folder that is not empty cannot be renamed over: for an instant neither is there, never a mixture of both.
    outdated = target.parent / f".{target.name}.{uuid.uuid4().hex}.old"
    os.rename(target, outdated)
    try:
        os.rename(staging, target)
    except OSError:
        os.rename(outdated, target)
        raise
    shutil.rmtree(outdated)


def read_bundle(location: str | Path, tracking_uri: str | None = None) -> Bundle:
    """Open a bundle and check every file against its hash.

    `location` is a folder, or `models:/name@alias` for one that the MLflow registry at `tracking_uri` holds.

    Raises: BundleInvalid naming the file that is missing, damaged or not understood, and what to do.
    """
    if str(location).startswith("models:/"):
        # Only a registry location needs the tracker: the runtime must not import it for a plain folder.
        from fusionray.ops.tracking import resolve_bundle

        location = resolve_bundle(str(location), tracking_uri)
    folder = Path(location).expanduser().absolute()
    description = read_description(folder)
    for name in REQUIRED_FILES:
        if name not in description.files:
            raise BundleInvalid(f"{folder}/{DESCRIPTION_NAME}: lists no {name}; export the model again")
    for name, promised in description.files.items():
        check_name(name, f"{folder}/{DESCRIPTION_NAME}")
        path = folder / name
        if not path.is_file():
            raise BundleInvalid(f"{path}: the bundle promises this file but it is missing; copy or export it again")
        found = hash_file(path)
        if found != promised:
            raise BundleInvalid(
                f"{path}: sha256 is {found[:12]}..., but {DESCRIPTION_NAME} promises {promised[:12]}...; the file is "
                "damaged or was changed: copy or export the bundle again"
            )
    return Bundle(folder, description)


def read_description(folder: Path) -> BundleDescription:
    """Read `bundle.json` without checking the files beside it.

    Raises: BundleInvalid if it is missing or not understood.
    """
    path = folder / DESCRIPTION_NAME
    if not path.is_file():
        raise BundleInvalid(f"{folder}: is not a bundle (no {DESCRIPTION_NAME}); make one with `fusionray export`")
    try:
        return BundleDescription.model_validate_json(path.read_bytes())
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"])
        raise BundleInvalid(
            f"{path}: not a description of format {FORMAT_VERSION} ({key}: {fault['msg']}); export the model again"
        ) from None


def bundle_hash(bundle: Bundle) -> str:
    """Identify a bundle by what it holds, wherever it lies: the sha256 of its description, which hashes every file."""
    tree = bundle.description.model_dump(mode="json")
    return hashlib.sha256(json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
