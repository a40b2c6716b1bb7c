"""Runs: one for each training, trial and evaluation, with its settings, metrics and pictures."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fusionray.config import hide_passwords
from fusionray.errors import RunStopped, TrackerFailed
from fusionray.storage import filesystem as storage
from fusionray.tracking.store import ARTIFACT_FOLDER, SQLITE, make_client, store_errors

# How a run ends, in MLflow's words.
RunEnd = Literal["FINISHED", "FAILED", "KILLED"]
STOPS = (RunStopped, KeyboardInterrupt)
RUN_TAG = "fusionray.run"
PARENT_TAG = "mlflow.parentRunId"
# Source: MLflow REST API, log-batch: 100 parameters at most.
PARAMETERS_A_CALL = 100


def open_run(
    uri: str,
    experiment: str,
    name: str,
    parameters: Mapping[str, Any],
    *,
    key: str | None = None,
    parent: str | None = None,
    fresh: bool = False,
) -> str:
    """Find the run of this name to continue, or create it; return its ID.

    `key` identifies the run if its name is not unique; `parent` is the ID of the run that this one is part of. With
    `fresh`, it is a new run in any case, and the one that is found from now on. Only the driver calls this, before any
    worker starts: processes that open a new SQLite store at once fail in its migrations.

    Raises: TrackerFailed.
    """
    with store_errors("name a store that can be reached and written, then start again"):
        client = make_client(uri)
        experiment_id = open_experiment(client, uri, experiment)
        run_id = None if fresh else find_run(client, experiment_id, f"tags.`{RUN_TAG}`", key or name)
        if run_id is not None:
            client.update_run(run_id, status="RUNNING")
            return run_id
        tags = {RUN_TAG: key or name, **({PARENT_TAG: parent} if parent else {})}
        run_id = str(client.create_run(experiment_id, run_name=name, tags=tags).info.run_id)
        log_parameters(client, run_id, hide_passwords(parameters))
        return run_id


def open_experiment(client: Any, uri: str, name: str) -> str:
    """Find an experiment, or create it; return its ID."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        local = uri.startswith(SQLITE)
        folder = (Path(uri.removeprefix(SQLITE)).parent / ARTIFACT_FOLDER).as_uri() if local else None
        try:
            return str(client.create_experiment(name, artifact_location=folder))
        except MlflowException as error:
            # Another run of it began at the same moment.
            found = client.get_experiment_by_name(name) if error.error_code == "RESOURCE_ALREADY_EXISTS" else None
            if found is None:
                raise
    return str(found.experiment_id)


def find_run(client: Any, experiment_id: str, field: str, value: str) -> str | None:
    """Find the newest run by its name, or by the tag of its key (its name if it had none); None if there is none."""
    # MLflow knows no escapes; a key may be a path with an apostrophe.
    quote = '"' if "'" in value else "'"
    runs = client.search_runs(
        [experiment_id],
        filter_string=f"{field} = {quote}{value}{quote}",
        order_by=["attributes.start_time DESC"],
        max_results=1,
    )
    return str(runs[0].info.run_id) if runs else None


def log_parameters(client: Any, run_id: str, parameters: Mapping[str, Any]) -> None:
    """Log settings as parameters, as many in one call as a store takes."""
    from mlflow.entities import Param

    entries = [Param(key, value) for key, value in flatten(parameters).items()]
    for start in range(0, len(entries), PARAMETERS_A_CALL):
        client.log_batch(run_id, params=entries[start : start + PARAMETERS_A_CALL])


def close_run(uri: str, run_id: str, status: RunEnd = "FINISHED") -> None:
    """Mark how a run ended.

    Raises: TrackerFailed.
    """
    with store_errors():
        make_client(uri).set_terminated(run_id, status=status)


@contextmanager
def closed_run(uri: str, run_id: str) -> Iterator[None]:
    """Mark a run as finished after a `with` block; as stopped or failed if an error ends it, which stays the error.

    Raises: TrackerFailed; what the block raises.
    """
    try:
        yield
    except BaseException as error:
        # Of two errors the first is the one to know.
        with suppress(TrackerFailed):
            close_run(uri, run_id, "KILLED" if isinstance(error, STOPS) else "FAILED")
        raise
    close_run(uri, run_id)


class RunTracker:
    """Write metrics and pictures of one run.

    With `once`, a metric at or before its newest entry is skipped: a training that resumes from a checkpoint repeats
    steps whose metrics are logged already. Without it, a repeated measurement is logged again.
    """

    def __init__(self, uri: str, run_id: str, *, once: bool = False) -> None:
        self.uri = uri
        self.run_id = run_id
        self.once = once
        self.last: dict[str, int] | None = None

    @cached_property
    def client(self) -> Any:
        """The connection, made when something is first logged: importing MLflow takes more than a second."""
        return make_client(self.uri)

    def log(self, images_seen: int, metrics: Mapping[str, float]) -> None:
        """Log metrics at a position in images; skip non-finite values.

        Raises: TrackerFailed if the store rejects them.
        """
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        with store_errors():
            if self.last is None:
                self.last = self.read_last() if self.once else {}
            entries = [
                Metric(key, float(value), now, images_seen)
                for key, value in metrics.items()
                if np.isfinite(value) and not (self.once and images_seen <= self.last.get(key, -1))
            ]
            self.client.log_batch(self.run_id, metrics=entries)
        self.last |= {entry.key: images_seen for entry in entries}

    def read_last(self) -> dict[str, int]:
        """Read the position of the newest entry of each metric."""
        keys = self.client.get_run(self.run_id).data.metrics
        return {key: max(entry.step for entry in self.client.get_metric_history(self.run_id, key)) for key in keys}

    def log_preview(self, images_seen: int, picture: NDArray[np.uint8], *, final: bool) -> None:
        """Log a picture [H,W,3] uint8; the final one also under a fixed name.

        Raises: TrackerFailed if the store rejects it.
        """
        image = Image.fromarray(picture)
        names = [f"previews/{images_seen:012d}.png"] + (["preview.png"] if final else [])
        with store_errors():
            for name in names:
                self.client.log_image(self.run_id, image, artifact_file=name)

    def log_file(self, location: str | Path) -> None:
        """Store a file with the run, from a path or a URI.

        Raises: TrackerFailed if the store rejects it; OSError.
        """
        with TemporaryDirectory(prefix="logged-") as folder, store_errors():
            local = str(location)
            if "://" in local:
                # MLflow uploads local files only.
                local = str(Path(folder) / local.rpartition("/")[2])
                storage.copy(str(location), local)
            self.client.log_artifact(self.run_id, local)


def read_run_metrics(uri: str, experiment: str, name: str, prefix: str) -> dict[str, list[tuple[int, float]]]:
    """Read the metrics of the newest run of a name that start with `prefix`, as (images seen, value) in order.

    There are none if the run is unknown.

    Raises: TrackerFailed if the store cannot be read.
    """
    with store_errors("repair the store, then evaluate again"):
        client = make_client(uri)
        found = client.get_experiment_by_name(experiment)
        run_id = None if found is None else find_run(client, found.experiment_id, "attributes.run_name", name)
        if run_id is None:
            return {}
        keys = [key for key in sorted(client.get_run(run_id).data.metrics) if key.startswith(prefix)]
        return {key: metric_history(uri, run_id, key) for key in keys}


def metric_history(uri: str, run_id: str, key: str) -> list[tuple[int, float]]:
    """Read a metric as (images seen, value), in order."""
    return sorted((entry.step, entry.value) for entry in make_client(uri).get_metric_history(run_id, key))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten a nested mapping to dotted keys and short JSON values, for MLflow's parameters."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = json.dumps(value)[:500]
    return flat
