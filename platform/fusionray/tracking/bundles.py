"""Bundles in the MLflow model registry: store a version, point an alias at it, find and download it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from fusionray.environment import REGISTRY_PREFIX
from fusionray.errors import BundleInvalid, first_line
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

    Raises: BundleInvalid if the registry has no such model.
    """
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    version = find_version(location, uri)
    try:
        return Path(download_artifacts(artifact_uri=version.source, tracking_uri=uri))
    except MlflowException as error:
        raise BundleInvalid(f"{location}: its files cannot be had from {uri} ({first_line(error)})") from None


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
        raise BundleInvalid(f"{location}: not in the registry at {uri} ({first_line(error)})") from None
