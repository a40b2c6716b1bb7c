"""Contract 4, the bundle: the folder that leaves training and enters serving.

    generator.onnx   source [N,L] or [N,3,s,s], target [N,3,S,S] -> output [N,3,S,S], mask [N,1,S,S]
    identity.onnx    input [N,3,112,112] -> source [N,L]; not there if the generator sees the source as a picture
    generator.fp16.onnx, generator.int8.onnx    the generator in fewer bits, where it was exported so
    bundle.json      how the models are driven, where they come from, and the sha256 of each file

These are the files of face fusion. A bundle of another task names it in `bundle.json`, has `generator.onnx` with inputs
of its own naming and an `output`, and lists whatever files it has besides.

A source is read once and drawn from as often as one likes. Of a bundle made here, its first 512 values are the identity
embedding, of unit length; what follows, if anything, is what the generator of the same bundle looks up in the source's
picture. A model made elsewhere may take another source: `description.py` has what can be said of it.

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

from pydantic import ValidationError

from fusionray.bundle.description import (
    EMBEDDING_LENGTH,
    FORMAT_VERSION,
    GENERATOR_NAME,
    IDENTITY_NAME,
    BundleDescription,
    TensorDescription,
    WeightPrecision,
)
from fusionray.environment import REGISTRY_PREFIX
from fusionray.errors import BundleInvalid

DESCRIPTION_NAME = "bundle.json"


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

    def require_task(self, task: str) -> None:
        """Refuse to be driven as a bundle of another task.

        Raises: BundleInvalid.
        """
        if self.description.task != task:
            raise BundleInvalid(
                f"{self.folder}: is a bundle of the task {self.description.task}, and one of {task} is needed here; "
                "name another one, or serve this one with `fusionray serve --bundle`"
            )

    def generator_path_for(self, precision: WeightPrecision) -> Path:
        """Locate the generator in a precision.

        Raises: BundleInvalid if the bundle has none of that precision.
        """
        if precision == "fp32":
            return self.generator_path
        variants = self.description.variants
        if precision not in variants:
            known = ", ".join(("fp32", *variants))
            raise BundleInvalid(
                f"{self.folder}: has no {precision} generator (it has {known}); choose one of these, or export the "
                f"checkpoint with --precision fp32,{precision}"
            )
        return self.folder / variants[precision].file

    @property
    def source_shape(self) -> tuple[int, ...]:
        """Give the shape of what stands for one source: [L], or [3,s,s] of a picture.

        Raises: BundleInvalid if the description gives no numbers, or fewer than an embedding has.
        """
        shape = self.tensor(GENERATOR_NAME, "source").shape[1:]
        sizes = tuple(size for size in shape if isinstance(size, int) and size > 0)
        # What a matrix or converter makes of an embedding may be shorter; tokens that follow it make it longer.
        shortest = 1 if self.description.source_is_picture or self.description.embedding.file else EMBEDDING_LENGTH
        if len(sizes) != len(shape) or not sizes or sizes[-1] < shortest:
            last = shape[-1] if shape else "nothing"
            raise BundleInvalid(
                f"{self.folder}/{DESCRIPTION_NAME}: 'source' of {GENERATOR_NAME} ends in {last}, not in a number "
                f"from {shortest} on; export it again"
            )
        return sizes

    @property
    def source_length(self) -> int:
        """Count the values that stand for a source.

        Raises: BundleInvalid as `source_shape` does.
        """
        length = 1
        for size in self.source_shape:
            length *= size
        return length

    def tensor(self, file: str, role: str) -> TensorDescription:
        """Look up what an input or output holds.

        Raises: BundleInvalid if the description does not mention it.
        """
        try:
            return self.description.tensors[file][role]
        except KeyError:
            raise BundleInvalid(
                f"{self.folder}/{DESCRIPTION_NAME}: `tensors` does not describe '{role}' of {file}; export it again"
            ) from None

    def port(self, file: str, role: str) -> str:
        """Name an input or output as the model does.

        Raises: BundleInvalid if the description does not mention it.
        """
        return self.tensor(file, role).port or role


def write_bundle(folder: str | Path, files: Mapping[str, bytes | Path], description: BundleDescription) -> Bundle:
    """Write files and description as a bundle, replacing one that is already there.

    `files` maps the names in the bundle to content or to a file to copy; their hashes are filled into the description.
    The bundle is built beside `folder` and renamed into place, so nothing half-written ever bears its name.

    Raises: BundleInvalid if a required file is not given, a name is a path, or `folder` holds something else.
    """
    target = Path(folder).expanduser().absolute()
    missing = [name for name in description.required_files if name not in files]
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
        text = json.dumps(complete.tree(), indent=1, sort_keys=True)
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
    if str(location).startswith(REGISTRY_PREFIX):
        # Only a registry location needs the tracker: the runtime must not import it for a plain folder.
        from fusionray.tracking import resolve_bundle

        location = resolve_bundle(str(location), tracking_uri)
    folder = Path(location).expanduser().absolute()
    description = read_description(folder)
    for name in description.required_files:
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
            f"{path}: not a description of format 1 to {FORMAT_VERSION} ({key}: {fault['msg']}); export the model again"
        ) from None


def bundle_hash(bundle: Bundle) -> str:
    """Identify a bundle by what it holds, wherever it lies: the sha256 of its description, which hashes every file."""
    tree = bundle.description.tree()
    return hashlib.sha256(json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
