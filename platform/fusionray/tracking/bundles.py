"""Bundles in the MLflow model registry: store a version, point an alias at it, find and download it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fusionray.config import hide_passwords
from fusionray.environment import REGISTRY_PREFIX, find_cache_folder
from fusionray.errors import BundleInvalid, first_line
from fusionray.storage.cache_folders import fill_once
from fusionray.tracking.store import make_client


def register_bundle(uri: str, folder: Path, name: str, alias: str, run_id: str) -> str:
    """Store a bundle as the next version of a model, point the alias at it, return `models:/name@alias`."""
    from mlflow.exceptions import MlflowException

    client = make_client(uri)
    # Each content has its own folder: a second export of the run must not change the files of an older version.
    place = f"bundle-{hashlib.sha256((folder / 'bundle.json').read_bytes()).hexdigest()[:12]}"
    client.log_artifacts(run_id, str(folder), artifact_path=place)
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    source = f"{client.get_run(run_id).info.artifact_uri}/{place}"
    version = client.create_model_version(name, source=source, run_id=run_id)
    client.set_registered_model_alias(name, alias, version.version)
    return f"{REGISTRY_PREFIX}{name}@{alias}"


def pin_bundle(location: str, uri: str | None) -> str:
    """Turn `models:/name@alias` into `models:/name/version`, which never changes, with one call of the registry.

    Raises: BundleInvalid if the registry has no such model.
    """
    version = find_version(location, uri)
    return f"{REGISTRY_PREFIX}{version.name}/{version.version}"


def resolve_bundle(location: str, uri: str | None) -> Path:
    """Turn `models:/name@alias` or `models:/name/version` into a local bundle folder.

    What lies on a server is downloaded into this user's cache once: MLflow itself would leave each copy in the
    temporary folder.

    Raises: BundleInvalid if the registry has no such model, or its files cannot be had.
    """
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    version = find_version(location, uri)
    source = str(version.source)

    def download(folder: Path) -> None:
        downloaded = Path(download_artifacts(artifact_uri=source, tracking_uri=uri, dst_path=str(folder)))
        for path in list(downloaded.iterdir()):
            path.rename(folder / path.name)
        downloaded.rmdir()

    try:
        if urlsplit(source).scheme in ("", "file"):
            return Path(download_artifacts(artifact_uri=source, tracking_uri=uri))
        # The folder of a version is named by its content, and never changes (`register_bundle`).
        key = hashlib.sha256(f"{uri} {source}".encode()).hexdigest()
        return fill_once(find_cache_folder() / "bundles" / key, download)
    except (MlflowException, OSError) as error:
        raise BundleInvalid(f"{location}: its files cannot be had ({first_line(error)})") from None


def find_version(location: str, uri: str | None) -> Any:
    """Look up the version of a location in the registry.

    Raises: BundleInvalid if the registry has no such model.
    """
    from mlflow.exceptions import MlflowException

    if uri is None:
        raise BundleInvalid(f"{location}: name the registry that holds it (tracking_uri)")
    client = make_client(uri)
    name, at, alias = location.removeprefix(REGISTRY_PREFIX).partition("@")
    try:
        if at:
            return client.get_model_version_by_alias(name, alias)
        name, _, number = name.partition("/")
        return client.get_model_version(name, number)
    except MlflowException as error:
        raise BundleInvalid(f"{location}: not in the registry at {hide_passwords(uri)} ({first_line(error)})") from None
