"""A replica, or a whole service, is killed while it has a film made: the job goes on, and the film is the same."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from ray import serve

from fusionray.cli import main
from fusionray.environment import KEY_VARIABLE, ROOT_VARIABLE
from fusionray.hardware.processes import find_processes
from fusionray.ray_cluster.connection import find_free_port
from fusionray.safety.audit import AuditConfig
from fusionray.serving.application import run
from fusionray.serving.auth.key_file import add_key
from fusionray.serving.config_sections.api_keys import ApiKeyConfig
from fusionray.serving.config_sections.stages import StageConfig
from fusionray.serving.http.jobs.films import FRAMES_PER_IMAGE
from tests.faults.driver import wait_until
from tests.faults.sessions import kill_session
from tests.serving.videos.conftest import LONG_FRAMES
from tests.serving.videos.film_jobs import SOURCE, look, reason_of, start, start_one, wait_for_end
from tests.serving.videos.orders import write_config
from tests.support.child_python import ROOT
from tests.support.serving import SEGMENT_SECONDS
from tests.support.serving_load import find_replicas
from tests.support.waiting import wait_for
from tests.video.test_resume import film_hash

pytestmark = pytest.mark.filterwarnings("ignore:outputs are signed with a generated TEST KEY:RuntimeWarning")


def make_expected(folder: Path, film: Path) -> str:
    """Make the film with the command; return its hash before it is signed."""
    (folder / "source.png").write_bytes(SOURCE)
    command = ["fuse-video", str(folder / "source.png"), str(film), str(folder / "made.mp4")]
    bundle = ["--bundle", str(folder / "bundle"), "--segment-seconds", str(SEGMENT_SECONDS)]
    assert main([*command, *bundle]) == 0
    return film_hash(folder / "made.mp4")


def read_hash(client: httpx.Client, job: str) -> str:
    """Read the hash of the film of a job before it was signed."""
    found = re.search(r"[0-9a-f]{64}", client.get(f"/v1/jobs/{job}/report").text)
    assert found
    return found[0]


def count_segments(folder: Path) -> int:
    """Count the finished segments of the only film below a folder."""
    return len(list(folder.glob("jobs/*/film-*/.*.work/segment-*.mp4")))


@pytest.mark.slow(seconds=80)
def test_a_killed_replica_does_not_cost_the_film_and_each_key_has_its_own_jobs(
    no_service: None, ray_session: None, tmp_path: Path, long_talk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys.yaml"
    ann, bob = add_key(keys, "ann", images_per_day=15), add_key(keys, "bob")
    config = write_config(
        tmp_path,
        ingress=StageConfig(num_replicas=1, cpus=1),
        keys=ApiKeyConfig(file=str(keys)),
        audit=AuditConfig(path=str(tmp_path / "audit.jsonl")),
    )
    expected = make_expected(tmp_path, long_talk)
    port = find_free_port()
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    run(config, port=port, blocking=False)
    try:
        with client_of(port, ann) as client, client_of(port, bob) as other:
            job = start_one(client, long_talk.read_bytes())
            used = client.get("/v1/usage").json()["images_per_day"]["used"]
            assert used == round(LONG_FRAMES / FRAMES_PER_IMAGE)
            # One more would be too much for today.
            assert start(client, long_talk.read_bytes()).status_code == 429
            wait_for(lambda: count_segments(tmp_path / "jobs") >= 2, 200)
            os.kill(min(find_replicas("Ingress")), signal.SIGKILL)
            for path in ("", "/result", "/preview", "/report", "/figures", "/events", "/items/1"):
                wait_for(lambda asked=path: is_unknown(other, f"/v1/jobs/{job}{asked}"))  # type: ignore[misc]
            wait_for(lambda: is_answered(client))
            ended = wait_for_end(client, job)
            assert ended["status"] == "done", ended
            assert read_hash(client, job) == expected
            figures = client.get(f"/v1/jobs/{job}/figures").json()["figures"]
            assert figures["frames_resumed"]["value"] > 0
            assert reason_of(other.delete(f"/v1/jobs/{job}")) == (404, "unknown_job")
            assert client.delete(f"/v1/jobs/{job}").status_code == 204
    finally:
        serve.shutdown()
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    (line,) = [line for line in lines if line["request"] == f"{job}-1"]
    assert (line["status"], line["who"], line["num_faces"] > 0) == (200, "ann", True)
    assert None not in (line["source_sha256"], line["target_sha256"], line["output_sha256"])


def client_of(port: int, key: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=200, headers=headers)


def is_answered(client: httpx.Client) -> bool:
    """Tell whether the replica is back."""
    try:
        return client.get("/v1/jobs").status_code == 200
    except httpx.HTTPError:
        return False


def is_unknown(client: httpx.Client, path: str) -> bool:
    """Tell whether a path is 404, as soon as a replica answers; meanwhile it may be 503 or nothing, never another."""
    try:
        answer = client.get(path)
    except httpx.HTTPError:
        return False
    if answer.status_code >= 500:
        return False
    assert reason_of(answer) == (404, "unknown_job")
    return True


@contextmanager
def service(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run `fusionray serve` with a Ray of its own; all of its processes are killed at the end."""
    stores = [f"jobs.folder={folder / 'jobs'}", f"identities.folder={folder / 'identities'}"]
    videos = ["videos.cpus=1", f"videos.segment_seconds={SEGMENT_SECONDS}", "ingress.cpus=1"]
    command = [sys.executable, "-m", "fusionray.cli", "serve", "--bundle", str(folder / "bundle"), "--port", str(port)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with tempfile.TemporaryDirectory(prefix="fr-film-", ignore_cleanup_errors=True) as ray:
        running = subprocess.Popen(
            [*command, *stores, *videos],
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**inherited, "PYTHONPATH": str(ROOT / "platform"), "RAY_TMPDIR": ray},
        )
        try:
            assert running.stdout is not None
            assert str(port).encode() in running.stdout.readline()
            yield running
        finally:
            kill_session(running)
            running.communicate()
            wait_until("the end of all processes", lambda: not find_processes(variable=f"RAY_TMPDIR={ray}"))


@pytest.mark.starts_ray
@pytest.mark.slow(seconds=120)
def test_a_killed_service_goes_on_with_the_film(tmp_path: Path, long_talk: Path) -> None:
    write_config(tmp_path)
    expected = make_expected(tmp_path, long_talk)
    port = find_free_port()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=200) as client:
        with service(tmp_path, port):
            job = start_one(client, long_talk.read_bytes())
            wait_for(lambda: count_segments(tmp_path / "jobs") >= 2, 200)
        finished = count_segments(tmp_path / "jobs")
        assert finished >= 2
        with service(tmp_path, port):
            assert look(client, job)["status"] in ("queued", "running")
            ended = wait_for_end(client, job)
            assert ended["status"] == "done", ended
            assert read_hash(client, job) == expected
            figures = client.get(f"/v1/jobs/{job}/figures").json()["figures"]
            assert figures["frames_resumed"]["value"] >= finished * 8 - 8
