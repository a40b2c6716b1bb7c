"""MLflow's server on PostgreSQL, with the trackers of many runs that write at one moment."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml

from fusionray.bundle.bundle import bundle_hash, read_bundle
from fusionray.environment import CACHE_VARIABLE
from fusionray.ray_cluster.connection import find_free_port
from fusionray.tracking.bundles import register_bundle
from fusionray.tracking.runs import RunTracker, close_run, metric_history, open_run
from fusionray.tracking.store import make_client
from tests.support.child_python import ROOT
from tests.support.tiny_bundle import write_tiny_bundle
from tests.support.waiting import wait_for

RUNS, ENTRIES = 50, 20
PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


def find_program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ["PATH"], *map(str, PROGRAMS)]))


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """Run PostgreSQL with an empty database; yield its URI."""
    initdb, server = find_program("initdb"), find_program("postgres")
    if initdb is None or server is None:
        pytest.skip("PostgreSQL is missing: apt-get install postgresql")
    # It refuses to run as the superuser, who may become another one.
    user = "postgres" if os.getuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="fr-pg-") as folder:
        if user is not None:
            shutil.chown(folder, user)
        data, port = f"{folder}/data", find_free_port()
        made = [initdb, "--pgdata", data, "--username=mlflow", "--auth=trust", "--no-sync", "--encoding=UTF8"]
        subprocess.run([*made, "--locale=C"], user=user, cwd=folder, capture_output=True, check=True)
        command = [server, "-D", data, "-p", str(port), "-k", folder, "-h", "127.0.0.1", "-c", "fsync=off"]
        process = subprocess.Popen(command, user=user, cwd=folder, stderr=subprocess.DEVNULL)
        try:
            ready = [find_program("pg_isready") or "pg_isready", "--quiet", "--host=127.0.0.1", f"--port={port}"]
            wait_for(lambda: subprocess.run(ready, check=False).returncode == 0, 30)
            yield f"postgresql+psycopg://mlflow@127.0.0.1:{port}/postgres"
        finally:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def mlflow_server(store: str, folder: Path) -> Iterator[str]:
    """Run MLflow's server by the command of the compose file, with other places; yield its address."""
    port = find_free_port()
    given = {
        "--host": "127.0.0.1",
        "--port": str(port),
        "--backend-store-uri": store,
        "--artifacts-destination": str(folder / "artifacts"),
    }
    compose = yaml.safe_load((ROOT / "cluster" / "docker" / "compose.yaml").read_text())
    service = compose["services"]["mlflow"]
    words = service["command"]
    options = {name: given.pop(name, value) for name, _, value in (word.partition("=") for word in words[2:])}
    assert not given
    command = [sys.executable, "-m", *words[:2], *(f"{name}={value}" for name, value in options.items())]
    url = f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=os.environ | service["environment"], stdout=log, stderr=log)

    def is_up() -> bool:
        assert process.poll() is None, (folder / "server.log").read_text()
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{url}/health").status_code == 200
        return False

    try:
        wait_for(is_up, 120)
        yield url
    finally:
        process.terminate()
        process.wait()


def write_run(uri: str, number: int) -> str:
    """Write one run as a trial does: settings, metrics, a picture."""
    run = open_run(uri, "search", f"trial-{number:03d}", {"recipe": {"rate": 0.1 * number, "width": 8}})
    tracker = RunTracker(uri, run)
    for entry in range(1, ENTRIES + 1):
        tracker.log(100 * entry, {"loss": 1.0 / entry + number, "speed": float(number)})
    tracker.log_preview(100 * ENTRIES, np.full((8, 8, 3), number, np.uint8), final=True)
    close_run(uri, run)
    return run


@pytest.mark.slow(seconds=40)
@pytest.mark.timeout(400)
def test_many_runs_write_at_one_moment_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with postgres() as store, mlflow_server(store, tmp_path) as uri:
        with ThreadPoolExecutor(RUNS) as threads:
            runs = list(threads.map(lambda number: write_run(uri, number), range(RUNS)))
        assert len(set(runs)) == RUNS
        client = make_client(uri)
        (experiment,) = [each for each in client.search_experiments() if each.name == "search"]
        assert len(client.search_runs([experiment.experiment_id])) == RUNS
        for number, run in enumerate(runs):
            found = client.get_run(run)
            assert (found.info.status, found.data.params["recipe.width"]) == ("FINISHED", "8")
            expected = [(100 * entry, 1.0 / entry + number) for entry in range(1, ENTRIES + 1)]
            assert metric_history(uri, run, "loss") == expected
            assert "preview.png" in [file.path for file in client.list_artifacts(run)]
        # The same name goes on with the same run.
        assert open_run(uri, "search", "trial-007", {}) == runs[7]
        monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
        (tmp_path / "temporary").mkdir()
        check_registry(uri, runs[0], tmp_path)


def check_registry(uri: str, run: str, folder: Path) -> None:
    """A bundle of the server's registry is downloaded once, and leaves nothing in the temporary folder."""
    made = write_tiny_bundle(folder / "bundle")
    location = register_bundle(uri, made.folder, "fusion", "prod", run)
    found = read_bundle(location, uri)
    assert found.folder.is_relative_to(folder / "cache")
    assert bundle_hash(found) == bundle_hash(made)
    (found.folder / "mark").touch()
    assert (read_bundle(location, uri).folder / "mark").exists()
    assert list((folder / "temporary").iterdir()) == []
    assert len(list((folder / "cache" / "fusionray" / "bundles").iterdir())) == 1
