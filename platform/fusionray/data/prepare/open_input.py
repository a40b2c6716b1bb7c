"""Open the input of prepare: a folder, an archive or the synthetic world."""

from __future__ import annotations

import os

import pyarrow as pa
from pyarrow import fs

from fusionray.data.prepare.archive_input import ArchiveInput, is_archive
from fusionray.data.prepare.config import PrepareConfig
from fusionray.data.prepare.folder_input import FolderInput
from fusionray.data.prepare.picture_input import PictureInput
from fusionray.data.prepare.synthetic_input import SCHEME, SyntheticPictures, parse_synthetic
from fusionray.errors import ConfigInvalid, InputMissing
from fusionray.faces.image_files.decode import ImageLimits
from fusionray.storage import filesystem as storage


def open_input(config: PrepareConfig) -> PictureInput:
    """Open the input of a configuration and check that it holds pictures.

    Raises:
        InputMissing: the input does not exist, is neither a folder nor an archive, or is empty.
        ConfigInvalid: a synthetic:// address is malformed or does not fit the task; the output is inside the input.
    """
    picture_input = _open(config)
    listing = picture_input.list_entries()
    if not listing.entries and not listing.dropped:
        raise InputMissing(f"{config.input}: holds no pictures; expected <identity>/<image> files in it")
    if not listing.entries:
        raise InputMissing(f"{config.input}: nothing in it can be read ({listing.dropped[0].detail})")
    return picture_input


def _open(config: PrepareConfig) -> PictureInput:
    if config.input.startswith(SCHEME):
        rendered = parse_synthetic(config.input)
        if config.task == "faces" and isinstance(rendered, SyntheticPictures):
            raise ConfigInvalid(f"{config.input}: shows no faces to train on; set task=pictures, or name people=500")
        return rendered
    limits = ImageLimits(
        max_bytes=config.max_file_bytes,
        max_pixels=config.max_image_pixels,
        max_side=max(16_384, config.size),
        min_side=config.min_image_side,
    )
    try:
        filesystem, path = storage.open_filesystem(config.input)
        kind = filesystem.get_file_info(path).type
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputMissing(f"{config.input}: cannot be opened: {error}") from error
    if kind == fs.FileType.NotFound:
        raise InputMissing(f"{config.input}: no such folder or archive; check INPUT")
    if kind == fs.FileType.Directory:
        _check_output_outside(config)
        return FolderInput(config.input, limits)
    if kind != fs.FileType.File or not is_archive(config.input):
        raise InputMissing(f"{config.input}: neither a folder nor a tar or zip archive; give one of these as INPUT")
    return ArchiveInput(
        config.input, limits, max_members=config.max_archive_members, max_bytes=config.max_archive_bytes
    )


def _check_output_outside(config: PrepareConfig) -> None:
    """Refuse an output inside the input: the next run would read the shards as input."""
    filesystems = [storage.open_filesystem(location) for location in (config.input, config.output)]
    (_, input_path), (_, output_path) = filesystems
    if all(isinstance(filesystem, fs.LocalFileSystem) for filesystem, _ in filesystems):
        input_path, output_path = os.path.realpath(input_path), os.path.realpath(output_path)
    elif filesystems[0][0] != filesystems[1][0]:
        return
    if f"{output_path}/".startswith(f"{input_path}/"):
        raise ConfigInvalid(f"output: {config.output} lies inside the input {config.input}; choose a folder outside it")
