"""The path with everything in an object store that throttles: prepared, trained, killed, resumed, exported, fused."""

from __future__ import annotations

import itertools
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fusionray.checkpoint.info import newest_checkpoint, read_info
from fusionray.cli import main
from fusionray.safety.verify import verify
from fusionray.storage import filesystem as storage
from fusionray.tracking.store import make_client
from tests.faults.driver import Driver, wait_until
from tests.support.child_python import run_python
from tests.support.object_store import BUCKET, object_store
from tests.support.pictures import draw_person
from tests.support.tiny_fusion import SIZE, save_encoder
from tests.support.tiny_run import CHECKPOINT_IMAGES, LOG_IMAGES, NAME, read_steps, write_run
from tests.support.tiny_world import save_fusion, write_world
from tests.tuning.tiny_search import write_search

SHARDS, RUNS, BUNDLE = (f"s3://{BUCKET}/{name}" for name in ("shards", "runs", "bundle"))
IMAGES = 400


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    with object_store(tmp_path, faults=True) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield variables


def count_images() -> int:
    newest = newest_checkpoint(f"{RUNS}/{NAME}")
    return 0 if newest is None else read_info(newest).images_seen


@pytest.fixture
def ray_folder() -> Iterator[str]:
    """A short path, since those of Ray's sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="fr-s3-", ignore_cleanup_errors=True) as folder:
        yield folder


def test_an_upload_that_fails_is_tried_again(store: dict[str, str]) -> None:
    storage.write_atomic(f"s3://{BUCKET}/lost", b"found")
    assert storage.read_bytes(f"s3://{BUCKET}/lost") == b"found"


@pytest.mark.slow(seconds=25)
def test_an_object_that_is_written_while_it_is_read_is_read_whole(store: dict[str, str]) -> None:
    place = f"s3://{BUCKET}/changing"
    contents = [b"a" * length for length in (10, 1000, 100)]
    stop = threading.Event()
    storage.write_atomic(place, contents[0])

    def write() -> None:
        for content in itertools.cycle(contents):
            if stop.is_set():
                return
            storage.write_atomic(place, content)

    with ThreadPoolExecutor(1) as threads:
        written = threads.submit(write)
        try:
            found = {storage.read_bytes(place) for _ in range(60)}
        finally:
            stop.set()
        written.result()
    assert found <= set(contents)


@pytest.mark.starts_ray
@pytest.mark.slow(seconds=160)
@pytest.mark.timeout(500)
def test_every_stage_reads_and_writes_an_object_store(store: dict[str, str], tmp_path: Path, ray_folder: str) -> None:
    # Ray's workers find the store by the variables of the process that starts Ray.
    prepared = (
        "prepare",
        "synthetic://people=12,images=6",
        SHARDS,
        f"size={SIZE}",
        "landmarks=exact",
        "rows_per_shard=12",
    )
    run_python("-m", "fusionray.cli", *prepared, RAY_TMPDIR=ray_folder)
    assert len(storage.list_folder(SHARDS)) > 5
    tracking = f"sqlite:///{tmp_path}/mlflow.db"
    settings = write_run(
        tmp_path,
        tmp_path / "settings",
        run={"output": RUNS},
        data={"shards": SHARDS},
        budget={"images": IMAGES},
        tracking={"uri": tracking},
    )
    driver = Driver(settings, ray_folder, environment=store)
    try:
        driver.start()
        wait_until("a second checkpoint", lambda: driver.has_ended() or count_images() >= 2 * CHECKPOINT_IMAGES)
        assert not driver.has_ended(), driver.log
        driver.send(signal.SIGKILL)
        driver.wait()
        saved = count_images()
        driver.start()
        assert driver.wait(240) == 0, driver.log
    finally:
        driver.close()
    assert 2 * CHECKPOINT_IMAGES <= saved < IMAGES == count_images()
    assert read_steps(tracking) == list(range(LOG_IMAGES, IMAGES + 1, LOG_IMAGES))
    assert main(["export", f"{RUNS}/{NAME}", "--output", BUNDLE]) == 0
    assert set(storage.list_folder(BUNDLE)) == {"bundle.json", "generator.onnx", "identity.onnx"}
    faces = [tmp_path / "source.png", tmp_path / "target.png"]
    for seed, file in enumerate(faces):
        Image.fromarray(draw_person(seed)).save(file)
    fused = tmp_path / "fused.png"
    with pytest.warns(RuntimeWarning, match="TEST KEY"):
        assert main(["fuse", *map(str, faces), str(fused), "--bundle", BUNDLE]) == 0
    assert verify(fused.read_bytes()).holds
    assert not os.path.exists("s3:")


@pytest.mark.starts_ray
@pytest.mark.slow(seconds=120)
@pytest.mark.timeout(400)
def test_searches_and_evaluations_are_written_to_an_object_store(
    store: dict[str, str], tmp_path: Path, ray_folder: str
) -> None:
    tracking = f"sqlite:///{tmp_path}/mlflow.db"
    search = write_search(tmp_path, output=RUNS, train={"tracking": {"uri": tracking}})
    command = ("-m", "fusionray.cli", "tune", "--config", str(search))
    run_python(*command, RAY_TMPDIR=ray_folder)
    written = storage.list_folder(f"{RUNS}/tiny")
    assert {"figures.json", "report.html", "best.yaml", "records", "trials"} <= set(written)
    assert not {name for name in written if name.startswith("tune-") or name == "tune"}, "Tune's own files are deleted"
    figures = json.loads(storage.read_bytes(f"{RUNS}/tiny/figures.json"))["figures"]
    assert figures["trials_finished"]["value"] == 2
    # The same command continues: here, it finds that nothing is left to do.
    assert f"{RUNS}/tiny/report.html" in run_python(*command, RAY_TMPDIR=ray_folder)
    write_world(tmp_path / "world")
    save_fusion(tmp_path / "model")
    save_encoder(tmp_path / "evaluator")
    evaluation = f"s3://{BUCKET}/evaluation"
    settings = (
        f"face_fusion.evaluator={tmp_path / 'evaluator'}",
        "face_fusion.attributes=null",
        "pairs=8",
        "bootstrap_rounds=0",
        f"tracking_uri={tracking}",
        f"runs={tmp_path / 'runs'}",
    )
    places = (str(tmp_path / "model"), "--data", str(tmp_path / "world"), "--output", evaluation)
    run_python("-m", "fusionray.cli", "evaluate", *places, *settings, RAY_TMPDIR=ray_folder)
    assert {"figures.json", "report.html", "report.md", "pairs.csv"} <= set(storage.list_folder(evaluation))
    client = make_client(tracking)
    (run,) = client.search_runs(
        [client.get_experiment_by_name("fusionray").experiment_id], "params.pairs = '8'", max_results=2
    )
    assert "report.html" in {entry.path for entry in client.list_artifacts(run.info.run_id)}
    assert not os.path.exists("s3:")


@pytest.mark.slow(seconds=95)
def test_ten_thousand_objects_are_listed_in_a_dozen_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with object_store(tmp_path) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        filesystem, folder = storage.open_filesystem(f"s3://{BUCKET}/many")
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda number: write_object(filesystem, f"{folder}/shard-{number:05d}"), range(10_000)))
        log = tmp_path / "object-store.log"
        before = log.read_text().count("GET ")
        started = time.monotonic()
        found = storage.list_folder(f"s3://{BUCKET}/many")
        seconds = time.monotonic() - started
        assert len(found) == 10_000
        assert set(found.values()) == {3}
        # A thousand names to a request.
        assert log.read_text().count("GET ") - before <= 12
        assert seconds < 20


def write_object(filesystem: Any, path: str) -> None:
    with filesystem.open_output_stream(path) as stream:
        stream.write(b"abc")
