"""The path with everything in an object store that throttles: prepared, trained, killed, resumed, exported, fused."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from fusionray.checkpoint.info import newest_checkpoint, read_info
from fusionray.cli import main
from fusionray.safety.verify import verify
from fusionray.storage import filesystem as storage
from tests.faults.driver import Driver, wait_until
from tests.support.child_python import run_python
from tests.support.object_store import BUCKET, object_store
from tests.support.pictures import draw_person
from tests.support.tiny_fusion import SIZE
from tests.support.tiny_run import CHECKPOINT_IMAGES, LOG_IMAGES, NAME, read_steps, write_run

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
