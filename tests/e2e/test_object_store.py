"""The path with everything in an object store that throttles and fails: prepared, trained, killed, resumed, exported,
fused, searched, evaluated."""

from __future__ import annotations

import io
import itertools
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from PIL import Image

from fusionray.checkpoint.info import newest_checkpoint, read_info
from fusionray.cli import main
from fusionray.config import load_config
from fusionray.data.shards import ShardInfo, check_shards, read_manifest, write_manifest
from fusionray.evaluation.config import EvaluateConfig
from fusionray.evaluation.evaluate import evaluate
from fusionray.reporting.figures import FIGURES_NAME, Figures
from fusionray.safety.verify import verify
from fusionray.storage import filesystem as storage
from fusionray.tracking.store import make_client
from fusionray.training.config import TrainConfig
from fusionray.tuning.records import SearchRecords
from tests.faults.driver import Driver, wait_until
from tests.support.child_python import run_python
from tests.support.object_store import BUCKET, object_store, upload
from tests.support.page_shape import check_page
from tests.support.pictures import draw_person
from tests.support.tiny_fusion import SIZE, save_encoder
from tests.support.tiny_manifest import build_manifest
from tests.support.tiny_run import CHECKPOINT_IMAGES, LOG_IMAGES, NAME, read_steps, write_run
from tests.support.tiny_shards import write_tiny_shards
from tests.support.tiny_style import build_encoder_config, start_engine, write_checkpoint, write_picture_shards
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


@pytest.mark.parametrize("size", [3, 30 << 20])
def test_an_upload_that_fails_leaves_the_old_file(store: dict[str, str], size: int) -> None:
    place = f"s3://{BUCKET}/fixed"
    storage.write_atomic(place, b"old")
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        storage.write_atomic(place, bytes(size))
    assert storage.read_bytes(place) == b"old"


def test_a_file_is_written_without_touching_the_folders_above_it(store: dict[str, str], tmp_path: Path) -> None:
    # Whoever may write below a folder may not write the folder itself, nor ask about the bucket.
    storage.write_atomic(f"s3://{BUCKET}/team/own/file", b"x")
    with storage.open_output(f"s3://{BUCKET}/team/own/streamed") as file:
        file.write(b"y")
    asked = re.findall(r'"[A-Z]+ (/\S+) HTTP', (tmp_path / "object-store.log").read_text())
    assert {path.partition("?")[0] for path in asked} == {
        f"/{BUCKET}",
        f"/{BUCKET}/team/own/file",
        f"/{BUCKET}/team/own/streamed",
    }
    assert asked.count(f"/{BUCKET}") == 1, "the bucket of this test is made"
    assert storage.list_folder(f"s3://{BUCKET}/team") == {"own": None}
    storage.delete(f"s3://{BUCKET}/team/own")
    assert not storage.exists(f"s3://{BUCKET}/team/own")


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
        wait_until(
            "a second checkpoint",
            lambda: driver.has_ended() or count_images() >= 2 * CHECKPOINT_IMAGES,
            seconds=240,
        )
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
@pytest.mark.slow(seconds=150)
@pytest.mark.timeout(500)
def test_a_killed_search_goes_on_in_an_object_store(store: dict[str, str], tmp_path: Path, ray_folder: str) -> None:
    tracking = f"sqlite:///{tmp_path}/mlflow.db"
    write_tiny_shards(tmp_path / "shards")
    interval, images = 64, 256
    train = {
        "data": {"shards": upload(tmp_path / "shards", "shards")},
        "budget": {"images": images, "checkpoint_every_images": interval, "validate_every_images": 2 * interval},
        "tracking": {"uri": tracking},
    }
    driver = Driver(write_search(tmp_path, output=RUNS, train=train), ray_folder, environment=store, verb="tune")
    records = SearchRecords(f"{RUNS}/tiny")
    second = f"{RUNS}/tiny/trials/tiny-001"
    try:
        driver.start()
        wait_until(
            "a checkpoint of the second trial",
            lambda: driver.has_ended() or newest_checkpoint(second) is not None,
            seconds=240,
        )
        assert not driver.has_ended(), driver.log
        driver.send(signal.SIGKILL)
        driver.wait()
        (before,) = [record for record in records.trials() if record.status == "finished"]
        attempts = records.attempts(before.name)
        driver.start()
        assert driver.wait(240) == 0, driver.log
        assert records.trials()[0] == before
        assert records.attempts(before.name) == attempts
        killed, last = records.attempts("tiny-001")
        assert (killed.first_images, killed.ended, last.ended) == (0, "", "finished")
        assert last.last_images == images > last.first_images > 0
        # Once more: it finds that nothing is left to do.
        driver.start()
        assert driver.wait(120) == 0, driver.log
        assert len(records.attempts("tiny-001")) == 2
    finally:
        driver.close()
    written = storage.list_folder(f"{RUNS}/tiny")
    assert {"figures.json", "report.html", "report.md", "best.yaml", "records", "trials"} <= set(written)
    assert "tune" not in written, "Tune's own files are deleted"
    assert load_config(TrainConfig, file=fetch(f"{RUNS}/tiny/best.yaml", tmp_path)).run.output == RUNS
    figures = Figures.model_validate_json(storage.read_bytes(f"{RUNS}/tiny/{FIGURES_NAME}")).figures
    assert figures["trials_finished"].value == 2
    assert figures["restarts"].value == 1
    assert "report.html" in list_artifacts(tracking, "tags.mlflow.runName = 'tiny'")
    assert not os.path.exists("s3:")


def fetch(location: str, folder: Path) -> Path:
    """Copy a file to this machine."""
    place = folder / location.rpartition("/")[2]
    storage.copy(location, str(place))
    return place


def list_artifacts(tracking: str, which: str) -> set[str]:
    """List the files of the one run that a filter finds."""
    client = make_client(tracking)
    (run,) = client.search_runs([client.get_experiment_by_name("fusionray").experiment_id], which)
    return {entry.path for entry in client.list_artifacts(run.info.run_id)}


@pytest.mark.starts_ray
@pytest.mark.slow(seconds=32)
def test_a_fusion_is_evaluated_from_and_into_an_object_store(
    store: dict[str, str], tmp_path: Path, ray_folder: str
) -> None:
    tracking = f"sqlite:///{tmp_path}/mlflow.db"
    write_world(tmp_path / "world")
    save_fusion(tmp_path / "model")
    save_encoder(tmp_path / "evaluator")
    model, world, evaluator = (upload(tmp_path / name, name) for name in ("model", "world", "evaluator"))
    evaluation = f"s3://{BUCKET}/evaluation"
    settings = ("face_fusion.attributes=null", "pairs=8", "bootstrap_rounds=0", f"runs=s3://{BUCKET}/runs")
    command = ("-m", "fusionray.cli", "evaluate", model, "--data", world, "--output", evaluation)
    own = (f"face_fusion.evaluator={evaluator}", f"tracking_uri={tracking}")
    run_python(*command, *settings, *own, RAY_TMPDIR=ray_folder)
    check_evaluation(evaluation, tracking, pairs=8)


@pytest.mark.slow(seconds=30)
def test_pictures_are_evaluated_from_and_into_an_object_store(
    store: dict[str, str], tmp_path: Path, style_folder: Path
) -> None:
    tracking = f"sqlite:///{tmp_path}/mlflow.db"
    write_picture_shards(tmp_path / "shards", 12)
    write_checkpoint(start_engine(build_encoder_config()), build_encoder_config(), tmp_path / "evaluator")
    config = EvaluateConfig(
        model=upload(style_folder / "bundle", "bundle"),
        data=upload(tmp_path / "shards", "shards"),
        evaluator=upload(tmp_path / "evaluator", "evaluator"),
        output=f"s3://{BUCKET}/evaluation",
        tracking_uri=tracking,
        bootstrap_rounds=0,
        pairs=8,
    )
    evaluate(config)
    check_evaluation(config.output, tracking, pairs=8)


def check_evaluation(location: str, tracking: str, *, pairs: int) -> None:
    """Check that everything of an evaluation is at a URI, whole, and with the tracker."""
    names = set(storage.list_folder(location))
    assert {FIGURES_NAME, "report.html", "report.md", "pairs.csv"} <= names
    Figures.model_validate_json(storage.read_bytes(f"{location}/{FIGURES_NAME}"))
    assert len(storage.read_bytes(f"{location}/pairs.csv").splitlines()) == 1 + pairs
    check_page(storage.read_bytes(f"{location}/report.html").decode())
    for name in names:
        if name.endswith(".png"):
            Image.open(io.BytesIO(storage.read_bytes(f"{location}/{name}"))).verify()
    assert names <= list_artifacts(tracking, f"params.pairs = '{pairs}'")
    assert not os.path.exists("s3:")


@pytest.mark.slow(seconds=40)
def test_ten_thousand_shards_are_opened_in_twenty_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with object_store(tmp_path) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        folder = f"s3://{BUCKET}/many"
        infos = [
            ShardInfo(file=f"shard-{n:05d}.parquet", split="train", rows=1, identities=1, bytes=3, sha256=f"{n:064x}")
            for n in range(10_000)
        ]
        # Not by `storage`, which takes three requests for a file: two thirds of the time of this test.
        bucket = f"{variables['AWS_ENDPOINT_URL']}/{BUCKET}"
        with httpx.Client() as client, ThreadPoolExecutor(4) as threads:
            made = threads.map(lambda info: client.put(f"{bucket}/many/{info.file}", content=b"abc").status_code, infos)
            assert set(made) == {200}
        write_manifest(folder, build_manifest(infos, SIZE))
        log = tmp_path / "object-store.log"
        before = len(log.read_text().splitlines())
        started = time.monotonic()
        manifest = read_manifest(folder)
        assert check_shards(folder, manifest, size=SIZE) == []
        seconds = time.monotonic() - started
        requests = len(log.read_text().splitlines()) - before
        print(f"10,000 shards: {requests} requests, {seconds:.1f} s")
        assert len(manifest.shards) == 10_000
        # A thousand names to a request; the others read the manifest.
        assert requests <= 20
        assert seconds < 20
