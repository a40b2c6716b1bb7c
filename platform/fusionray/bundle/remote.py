"""Bundles at URIs (s3://, gs://, ...): engines read files, so each content is copied to this machine once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from fusionray.bundle.description import DESCRIPTION_NAME, check_name, parse_description
from fusionray.environment import find_cache_folder
from fusionray.errors import BundleInvalid
from fusionray.storage import filesystem as storage
from fusionray.storage.cache_folders import fill_once


def fetch_bundle(location: str) -> Path:
    """Copy a bundle into this user's cache, if its content is not there; return the folder, unchecked.

    Raises: BundleInvalid if there is no bundle, or it cannot be read.
    """
    text = fetch(location, DESCRIPTION_NAME)

    def copy_files(folder: Path) -> None:
        for name in parse_description(text, f"{location}/{DESCRIPTION_NAME}").files:
            check_name(name, f"{location}/{DESCRIPTION_NAME}")
            fetch(location, name, folder / name)
        (folder / DESCRIPTION_NAME).write_bytes(text)

    folder = find_cache_folder() / "bundles" / hashlib.sha256(text).hexdigest()
    try:
        return fill_once(folder, copy_files)
    except OSError as error:
        raise BundleInvalid(f"{folder}: cannot be written ({error.strerror}); free some space there") from None


def fetch(location: str, name: str, target: Path | None = None) -> bytes:
    """Read a file of a bundle, or copy it to `target`.

    Raises: BundleInvalid.
    """
    place = storage.join(location, name)
    try:
        if target is None:
            return storage.read_bytes(place)
        storage.copy(place, str(target))
    except FileNotFoundError:
        if name == DESCRIPTION_NAME:
            reason = f"is not a bundle (no {name}); make one with `fusionray export`"
        else:
            reason = f"{DESCRIPTION_NAME} lists {name}, but it is missing; copy or export it again"
        raise BundleInvalid(f"{location}: {reason}") from None
    except OSError as error:
        raise BundleInvalid(f"{place}: cannot be read ({' '.join(str(error).split())}); check the storage") from None
    return b""


def upload_bundle(folder: Path, files: Iterable[str], location: str) -> None:
    """Write a bundle with these `files` to a URI, its description last; an older bundle there is replaced.

    While it is replaced there is no bundle there, but never a mixture of both.

    Raises: BundleInvalid if something else lies there; OSError.
    """
    present = storage.list_folder(location)
    if present and DESCRIPTION_NAME not in present:
        raise BundleInvalid(f"{location}: has content that is not a bundle, and is left alone; choose another folder")
    for name in (DESCRIPTION_NAME, *sorted(present.keys() - {DESCRIPTION_NAME})):
        if name in present:
            storage.delete(storage.join(location, name))
    for name in (*files, DESCRIPTION_NAME):
        storage.copy(str(folder / name), storage.join(location, name))
