"""The tracking store: a server, or an SQLite file next to the runs."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fusionray.environment import find_cache_folder
from fusionray.errors import TrackerFailed

STORE_NAME = "mlflow.db"
ARTIFACT_FOLDER = "mlflow-artifacts"
SQLITE = "sqlite:///"


def tracking_uri(
    configured: str | None, output: str, *, setting: str = "tracking.uri", place: str = "run.output"
) -> str:
    """Choose the tracking store: the configured one, or an SQLite file in a local output folder.

    `setting` and `place`: the keys by which the caller's users know `configured` and `output`.

    Raises: ValueError if the output is not a local folder and no store is configured.
    """
    if configured:
        return configured
    if "://" in output:
        raise ValueError(
            f"{setting}: name an MLflow server (http://...) or a file (sqlite:////...), since {place}={output} is not "
            "a local folder, in which a file could be made"
        )
    Path(output).mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{output}/{STORE_NAME}"


def make_client(uri: str) -> Any:
    """Connect to a store without changing MLflow's global state; create it if it is an SQLite file that is missing."""
    if uri.startswith(SQLITE):
        create_store(Path(uri.removeprefix(SQLITE)))
    return connect(uri)


def connect(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def create_store(path: Path) -> None:
    """Copy an empty store to `path`, if nothing is there.

    MLflow creates a store by its migrations, which take three seconds. So they run once for a version of MLflow, and
    their result is kept in the user's cache.
    """
    if path.exists():
        return
    template = find_cache_folder() / f"mlflow-{version('mlflow')}.db"
    # Where the cache or the folder cannot be written, MLflow runs its migrations, or says what is wrong.
    with contextlib.suppress(OSError, sqlite3.Error), TemporaryDirectory(prefix=".store-", dir=path.parent) as folder:
        if not template.exists():
            keep_template(template)
        copy = Path(folder) / STORE_NAME
        copy_store(template, copy, (path.parent / ARTIFACT_FOLDER).as_uri())
        # A link fails if another process was faster, and its store must stay.
        os.link(copy, path)


def keep_template(template: Path) -> None:
    """Make an empty store, and move it into the cache in one piece."""
    template.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".store-", dir=template.parent) as folder:
        made, whole = Path(folder) / "made.db", Path(folder) / "whole.db"
        connect(f"{SQLITE}{made}").search_experiments(max_results=1)
        copy_store(made, whole, "")
        whole.replace(template)


def copy_store(source: Path, target: Path, artifacts: str) -> None:
    """Copy an empty store; `artifacts` is the URI under which its default experiment keeps files."""
    with (
        contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as read,
        contextlib.closing(sqlite3.connect(target)) as written,
    ):
        read.backup(written)
        written.execute("UPDATE experiments SET artifact_location = ? || '/' || experiment_id", (artifacts,))
        written.commit()


@contextlib.contextmanager
def store_errors(remedy: str = "free some space, or repair the store, then start the same run again") -> Iterator[None]:
    """Turn an error of the store into one line.

    Raises: TrackerFailed.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        # The first line is the database's own message; SQL statements and links follow.
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise TrackerFailed(f"tracking: {reason}; {remedy}") from None
