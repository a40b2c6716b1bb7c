"""The head dies under load, and comes back with what it knew: people are answered all the time, a training resumes."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import httpx
import pytest
from PIL import Image

from fusionray.ray_cluster.connection import find_free_port
from tests.faults.driver import Driver, wait_until
from tests.faults.three_nodes import LocalNodes, can_make_namespaces
from tests.support.child_python import run_python
from tests.support.pictures import draw_person
from tests.support.tiny_bundle import write_tiny_bundle
from tests.support.tiny_run import CHECKPOINT_IMAGES, IMAGES, LOG_IMAGES, count_images, read_steps, write_run

pytestmark = [pytest.mark.starts_ray, pytest.mark.timeout(600)]
KEY = "a-key-of-this-test"
# Of the raylets, which wait for a head that is gone; by default a minute.
WAIT_FOR_HEAD = {"RAY_gcs_rpc_server_reconnect_timeout_s": "120"}
REDIS_PASSWORD = "a-word-of-this-test"
AWAY_SECONDS = 8.0

SERVE = """
import sys
from fusionray.ray_cluster.connection import cluster
from fusionray.serving.application import run
from fusionray.serving.config import ServeConfig
config = {"models": [{"name": "default", "bundle": sys.argv[1]}], "ingress": {"num_replicas": 1, "cpus": 1}}
with cluster("auto"):
    run(ServeConfig.model_validate(config), "0.0.0.0", int(sys.argv[2]), blocking=False)
"""


@contextlib.contextmanager
def keep_in_rocksdb() -> Iterator[tuple[dict[str, str], list[str]]]:
    """Yield variables of all nodes and options of the head."""
    with tempfile.TemporaryDirectory(prefix="fr-gcs-", ignore_cleanup_errors=True) as folder:
        yield {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": folder}, []


@contextlib.contextmanager
def keep_in_redis() -> Iterator[tuple[dict[str, str], list[str]]]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is missing: apt-get install redis-server")
    port = find_free_port()
    with tempfile.TemporaryDirectory(prefix="fr-redis-", ignore_cleanup_errors=True) as folder:
        command = ["redis-server", "--port", str(port), "--dir", folder, "--requirepass", REDIS_PASSWORD]
        process = subprocess.Popen([*command, "--appendonly", "yes"], stdout=subprocess.DEVNULL)
        try:
            wait_until("an answer of Redis", lambda: is_listening(port), 20)
            yield {"RAY_REDIS_ADDRESS": f"127.0.0.1:{port}"}, [f"--redis-password={REDIS_PASSWORD}"]
        finally:
            process.terminate()
            process.wait()


def is_listening(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


Keep = Callable[[], contextlib.AbstractContextManager[tuple[dict[str, str], list[str]]]]


class Asking:
    """Somebody who fuses a picture again and again."""

    def __init__(self, url: str) -> None:
        self.url = url
        files = {}
        for seed, name in enumerate(("source", "target")):
            written = BytesIO()
            Image.fromarray(draw_person(seed)).save(written, "PNG")
            files[name] = (f"{name}.png", written.getvalue(), "image/png")
        self.files = files
        self.answers: list[tuple[float, int]] = []
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.ask, daemon=True)

    def ask(self) -> None:
        with httpx.Client(headers={"Authorization": f"Bearer {KEY}"}, timeout=30) as client:
            while not self.is_over.is_set():
                try:
                    status = client.post(f"{self.url}/v1/fuse", files=self.files).status_code
                except httpx.HTTPError:
                    status = 0
                self.answers.append((time.monotonic(), status))
                time.sleep(0.1)

    def __enter__(self) -> Asking:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.thread.join()

    def since(self, moment: float) -> list[int]:
        """The statuses of all answers since a moment."""
        return [status for when, status in self.answers if when > moment]


@pytest.mark.slow(seconds=190)
@pytest.mark.parametrize("keep", [keep_in_rocksdb, keep_in_redis])
def test_a_head_that_dies_and_returns_costs_no_answer_and_no_training(keep: Keep, tmp_path: Path) -> None:
    if not can_make_namespaces():
        pytest.skip("network namespaces cannot be made here")
    bundle, port = tmp_path / "bundle", find_free_port()
    write_tiny_bundle(bundle)
    with keep() as (kept, options):
        environment = {**WAIT_FOR_HEAD, **kept, "FUSIONRAY_API_KEY": KEY}
        with LocalNodes(2, 3, namespaces=True, environment=environment, head_cpus=0, head_options=options) as nodes:
            run_python("-c", SERVE, str(bundle), str(port), **nodes.environment, FUSIONRAY_API_KEY=KEY)
            settings = write_run(tmp_path, tmp_path / "runs", workers={"num_workers": 1})
            driver = Driver(settings, nodes.environment["RAY_TMPDIR"], environment=nodes.environment)
            driver.start()
            try:
                with Asking(f"http://{nodes.nodes[1].ip}:{port}") as asking:
                    driver.wait_for_images(2 * CHECKPOINT_IMAGES)
                    wait_until("an answer", lambda: 200 in asking.since(0))
                    killed = time.monotonic()
                    nodes.kill(0)
                    time.sleep(AWAY_SECONDS)
                    nodes.start(0)
                    back = time.monotonic() - killed
                    # Whether the driver's command goes on or ends: the same command finishes the run.
                    if driver.process is not None and driver.process.poll() is None:
                        driver.process.kill()
                    driver.wait()
                    saved = count_images(driver.output)
                    driver.start()
                    assert driver.wait(240) == 0, driver.log
                    resumed = time.monotonic() - killed
                    statuses = asking.since(killed)
            finally:
                if driver.process is not None and driver.process.poll() is None:
                    driver.process.kill()
                    driver.process.wait()
    print(f"head back after {back:.1f} s, run finished after {resumed:.1f} s from {saved} of {IMAGES} images")
    print(f"{len(statuses)} answers, {sum(status != 200 for status in statuses)} of them errors")
    assert len(statuses) > 20
    assert set(statuses) == {200}
    assert count_images(driver.output) == IMAGES
    steps = read_steps(f"sqlite:///{driver.output}/mlflow.db")
    assert steps == list(range(LOG_IMAGES, IMAGES + 1, LOG_IMAGES))
