"""Write and read bundles: folders with ONNX models and `bundle.json`, which `fusionray export` makes and serving loads.

    generator.onnx   source [N,L] or [N,3,s,s], target [N,3,S,S] -> output [N,3,S,S], mask [N,1,S,S]
    identity.onnx    input [N,3,112,112] -> source [N,L]; absent if the generator takes the source as a picture
    generator.fp16.onnx, generator.int8.onnx    quantized variants of the generator, if exported
    bundle.json      inputs, outputs and origin of the models, and the sha256 of each file

These are the files of face fusion. A bundle of another task names it in `bundle.json`; its `generator.onnx` has inputs
with names of its own and an `output`, and the bundle may hold more files.

The first 512 values of an encoded source are the identity embedding, of unit length; the values after it, if any,
encode more of the source face, for the generator of the same bundle only. An imported model may take another source
(`description.py`).

A bundle is written atomically, and `read_bundle` checks every hash before it returns.
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
from tempfile import TemporaryDirectory

from fusionray.bundle.description import (
    DESCRIPTION_NAME,
    EMBEDDING_LENGTH,
    GENERATOR_NAME,
    IDENTITY_NAME,
    PARSER_NAME,
    BundleDescription,
    TensorDescription,
    WeightPrecision,
    check_name,
    parse_description,
)
from fusionray.environment import REGISTRY_PREFIX
from fusionray.errors import BundleInvalid


@dataclass(frozen=True)
class Bundle:
    """A folder whose files have been checked, and its description."""

    folder: Path
    description: BundleDescription

    @property
    def generator_path(self) -> Path:
        """Return the path of the float32 generator."""
        return self.folder / GENERATOR_NAME

    @property
    def identity_path(self) -> Path:
        """Return the path of the identity encoder."""
        return self.folder / IDENTITY_NAME

    @property
    def parser_path(self) -> Path:
        """Return the path of the face parser, of bundles whose description has one."""
        return self.folder / PARSER_NAME

    def require_task(self, task: str) -> None:
        """Check that the bundle is of a task.

        Raises: BundleInvalid if it is of another task.
        """
        if self.description.task != task:
            raise BundleInvalid(
                f"{self.folder}: is a bundle of the task {self.description.task}, and one of {task} is needed here; "
                "name another bundle, or serve this one with `fusionray serve --bundle`"
            )

    def generator_path_for(self, precision: WeightPrecision) -> Path:
        """Return the path of the generator in a precision.

        Raises: BundleInvalid if the bundle has no generator in that precision.
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
        """Return the shape of one encoded source: [L], or [3,s,s] of a picture.

        Raises: BundleInvalid if the described shape is not fixed, or is shorter than an embedding.
        """
        shape = self.tensor(GENERATOR_NAME, "source").shape[1:]
        sizes = tuple(size for size in shape if isinstance(size, int) and size > 0)
        # A matrix or converter may shorten an embedding; tokens that follow the embedding make the source longer.
        shortest = 1 if self.description.source_is_picture or self.description.embedding.file else EMBEDDING_LENGTH
        if len(sizes) != len(shape) or not sizes or sizes[-1] < shortest:
            last = shape[-1] if shape else "nothing"
            raise BundleInvalid(
                f"{self.folder}/{DESCRIPTION_NAME}: 'source' of {GENERATOR_NAME} ends in {last}, not in a number of "
                f"at least {shortest}; export it again"
            )
        return sizes

    @property
    def source_length(self) -> int:
        """Return the number of values of one encoded source.

        Raises: BundleInvalid as `source_shape` does.
        """
        length = 1
        for size in self.source_shape:
            length *= size
        return length

    def tensor(self, file: str, role: str) -> TensorDescription:
        """Return the description of an input or output.

        Raises: BundleInvalid if there is none.
        """
        try:
            return self.description.tensors[file][role]
        except KeyError:
            raise BundleInvalid(
                f"{self.folder}/{DESCRIPTION_NAME}: `tensors` does not describe '{role}' of {file}; export it again"
            ) from None

    def port(self, file: str, role: str) -> str:
        """Return the name of an input or output in the graph.

        Raises: BundleInvalid if it is not described.
        """
        return self.tensor(file, role).port or role


def write_bundle(folder: str | Path, files: Mapping[str, bytes | Path], description: BundleDescription) -> Bundle:
    """Write files and description as a bundle, atomically; an older bundle in `folder` is replaced.

    `files` maps names in the bundle to content, or to a file to copy; the description gets their hashes. `folder` may
    be a URI; the returned bundle is then a copy of it on this machine.

    Raises: BundleInvalid if a required file is missing, a name is a path, or `folder` has content other than a bundle.
    """
    if is_remote(folder):
        from fusionray.bundle.remote import upload_bundle

        with TemporaryDirectory(prefix="fusionray-bundle-") as temporary:
            written = write_bundle(Path(temporary) / "bundle", files, description)
            upload_bundle(written.folder, sorted(written.description.files), str(folder))
        return read_bundle(folder)
    target = Path(folder).expanduser().absolute()
    missing = [name for name in description.required_files if name not in files]
    if missing:
        raise BundleInvalid(f"{target}: a bundle needs {' and '.join(missing)}; add them to `files`")
    for name in files:
        check_name(name, str(target))
    if target.exists() and not (target / DESCRIPTION_NAME).is_file() and (target.is_file() or any(target.iterdir())):
        raise BundleInvalid(f"{target}: has content that is not a bundle, and is left alone; choose another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.parent / f".{target.name}.{uuid.uuid4().hex}.part"
    staging.mkdir()
    try:
        hashes = {name: store_file(staging / name, content) for name, content in sorted(files.items())}
        complete = description.model_copy(update={"files": hashes})
        text = json.dumps(complete.to_json(), indent=1, sort_keys=True)
        store_file(staging / DESCRIPTION_NAME, f"{text}\n".encode())
        replace_folder(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Bundle(target, complete)


def is_remote(location: str | Path) -> bool:
    """Tell whether a location is a URI."""
    return "://" in str(location)


def store_file(path: Path, content: bytes | Path) -> str:
    """Write or copy one file, sync it to the disk, and return its sha256."""
    if isinstance(content, Path):
        shutil.copyfile(content, path)
    else:
        path.write_bytes(content)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return hash_file(path)


def hash_file(path: Path) -> str:
    """Return the sha256 of a file, hexadecimal, without loading the file into memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace_folder(staging: Path, target: Path) -> None:
    """Rename a finished folder to its path; an existing folder is first renamed, then removed."""
    if not target.exists():
        os.rename(staging, target)
        return
    # A rename cannot replace a non-empty folder: for a moment there is no bundle, but never a mixture of both.
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

    `location` is a folder, a URI, or `models:/name@alias` of the MLflow registry at `tracking_uri`.

    Raises: BundleInvalid naming the file that is missing, damaged or not understood.
    """
    if str(location).startswith(REGISTRY_PREFIX):
        # Only a registry location needs the tracker: the runtime must not import it for a plain folder.
        from fusionray.tracking.bundles import resolve_bundle

        location = resolve_bundle(str(location), tracking_uri)
    elif is_remote(location):
        from fusionray.bundle.remote import fetch_bundle

        location = fetch_bundle(str(location))
    folder = Path(location).expanduser().absolute()
    description = read_description(folder)
    for name in description.required_files:
        if name not in description.files:
            raise BundleInvalid(f"{folder}/{DESCRIPTION_NAME}: lists no {name}; export the model again")
    for name, expected in description.files.items():
        check_name(name, f"{folder}/{DESCRIPTION_NAME}")
        path = folder / name
        if not path.is_file():
            raise BundleInvalid(
                f"{path}: {DESCRIPTION_NAME} lists this file, but it is missing; copy or export it again"
            )
        found = hash_file(path)
        if found != expected:
            raise BundleInvalid(
                f"{path}: sha256 is {found[:12]}..., but {DESCRIPTION_NAME} lists {expected[:12]}...; the file is "
                "damaged or was changed: copy or export the bundle again"
            )
    return Bundle(folder, description)


def read_description(folder: Path) -> BundleDescription:
    """Read `bundle.json` without checking the other files.

    Raises: BundleInvalid if it is missing or not understood.
    """
    path = folder / DESCRIPTION_NAME
    if not path.is_file():
        raise BundleInvalid(f"{folder}: is not a bundle (no {DESCRIPTION_NAME}); make one with `fusionray export`")
    return parse_description(path.read_bytes(), str(path))


def bundle_hash(bundle: Bundle) -> str:
    """Return the sha256 of a bundle's content: of its description, which includes the hash of every file."""
    described = bundle.description.to_json()
    return hashlib.sha256(json.dumps(described, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
