"""The whole stage on a real Ray: shards, manifest, drops, resume and refusals."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from fusionray.data.person_labels import LABELS_NAME, read_labels
from fusionray.data.prepare import PrepareConfig, prepare
from fusionray.data.prepare import run as run_module
from fusionray.data.shards import Manifest, SplitInfo, read_manifest
from fusionray.data.synthetic import neutral_attributes, render, sample_identities
from fusionray.errors import ConfigInvalid, DetectorUnavailable, InputMissing, ShardMismatch
from fusionray.faces.image_files.decode import decode_image, encode_image
from fusionray.hardware.processes import find_processes
from fusionray.storage.filesystem import sha256_hex
from tests.support.waiting import wait_for

# Ray 2.60 warns of its own defaults whenever a DataContext is made.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")

ROOT = Path(__file__).parents[3]


@lru_cache
def draw_face(number: int) -> NDArray[np.uint8]:
    """Draw a frontal person, [160, 160, 3] uint8 RGB."""
    picture = render(sample_identities(number + 1, 5)[-1:], neutral_attributes(1), 160)[0]
    return np.ascontiguousarray((picture * 255).round().byte().permute(1, 2, 0).numpy())


def face(number: int) -> bytes:
    return encode_image(draw_face(number), "jpeg")


def write_people(root: Path) -> Path:
    """Four people with two good pictures each, and one of every kind of bad file."""
    for person in range(4):
        folder = root / f"person {person}"
        folder.mkdir(parents=True)
        for number in range(2):
            (folder / f"{number}.jpg").write_bytes(face(person))
    return root


def write_bad_files(root: Path) -> dict[str, str]:
    empty = np.full((200, 200, 3), 128, np.uint8)
    blurred = cv2.GaussianBlur(draw_face(0), (0, 0), 2.0)
    small = cv2.resize(draw_face(0), (48, 48), interpolation=cv2.INTER_AREA)
    files = {
        "zero.jpg": (b"", "not_an_image"),
        "notes.txt": (b"not a picture", "not_an_image"),
        "cut.jpg": (face(0)[:3000], "damaged"),
        "tiny.png": (encode_image(np.zeros((4, 4, 3), np.uint8), "png"), "too_small"),
        "wide.png": (encode_image(np.zeros((40, 20_000, 3), np.uint8), "png"), "too_large"),
        "nobody.png": (encode_image(empty, "png"), "no_face"),
        "smear.png": (encode_image(blurred, "png"), "blurred"),
        "far.png": (encode_image(np.pad(small, ((60, 60), (60, 60), (0, 0))), "png"), "face_too_small"),
    }
    for name, (data, _) in files.items():
        (root / "person 0" / name).write_bytes(data)
    (root / "person 0" / "gone.jpg").symlink_to(root / "nowhere.jpg")
    return {f"person 0/{name}": reason for name, (_, reason) in files.items()} | {"person 0/gone.jpg": "unreadable"}


def rows_of(output: Path, manifest: Manifest) -> list[dict]:
    return [row for shard in manifest.shards for row in pq.read_table(output / shard.file).to_pylist()]


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.stat().st_ino)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.usefixtures("ray_session")
def test_a_folder_becomes_shards_that_match_their_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = write_people(tmp_path / "in"), tmp_path / "out"
    expected_drops = write_bad_files(source)
    config = PrepareConfig(
        input=str(source), output=str(output), rows_per_shard=4, validation_fraction=0.3, min_sharpness=25
    )
    manifest = prepare(config)

    assert read_manifest(str(output)) == manifest
    assert (manifest.num_images, manifest.num_identities, manifest.num_dropped) == (8, 4, len(expected_drops))
    assert (manifest.template, manifest.size, manifest.synthetic) == ("arcface_128", 128, False)
    for shard in manifest.shards:
        data = (output / shard.file).read_bytes()
        assert (len(data), sha256_hex(data)) == (shard.bytes, shard.sha256)
    lines = (output / "dropped.jsonl").read_text().splitlines()
    drops = {drop["source"]: drop["reason"] for drop in map(json.loads, lines)}
    assert drops == expected_drops
    assert sum(manifest.dropped.values()) == len(drops)

    rows = rows_of(output, manifest)
    assert len(rows) == 8
    template_middle = np.array([64, 72])
    for row in rows:
        crop = decode_image(row["image"])
        assert crop.shape == (128, 128, 3)
        assert np.abs(np.array(row["landmarks"]).mean(0) - template_middle).max() < 4
        assert row["source"].startswith(row["identity"] + "/")
    homes: dict[str, set[str]] = {}
    for shard in manifest.shards:
        names = pq.read_table(output / shard.file, columns=["identity"])["identity"].to_pylist()
        assert names == sorted(names)
        for name in names:
            homes.setdefault(name, set()).add(shard.split)
    assert all(len(splits) == 1 for splits in homes.values())
    assert 0 < manifest.splits["validation"].identities < 4
    assert manifest.splits["test"] == SplitInfo(rows=0, identities=0)
    assert "nobody is held out for the test, since 4 people are too few" in capsys.readouterr().err
    sheet = decode_image((output / "contact_sheet.png").read_bytes())
    assert sheet.shape == (4 * 128, 4 * 112, 3)
    assert not list(output.rglob("*.part"))


@pytest.mark.usefixtures("ray_session")
def test_a_second_run_does_nothing_and_only_a_lost_shard_is_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write_people(tmp_path / "in"), tmp_path / "out"
    config = PrepareConfig(input=str(source), output=str(output), rows_per_shard=2, contact_sheet=False)
    manifest = prepare(config)
    assert len(manifest.shards) == 4
    before = files_of(output)
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "_make_shards", None)  # a second run must not make shards
        assert prepare(config) == manifest
    assert files_of(output) == before
    assert "nothing to do" in capsys.readouterr().err

    lost = manifest.shards[1].file
    (output / lost).unlink()
    assert prepare(config) == manifest, "the same input gives the same bytes"
    after = files_of(output)
    changed = {name for name in after if after[name] != before.get(name)}
    assert {name for name in changed if name.endswith(".parquet")} == {lost}
    assert "3 of 4 shards were made before" in capsys.readouterr().err

    labels = read_labels(str(output), manifest)
    train = manifest.model_copy(update={"shards": [shard for shard in manifest.shards if shard.split == "train"]})
    names = [row["identity"] for row in rows_of(output, train)]
    assert sorted({labels[name] for name in names}) == list(range(manifest.num_people))
    (output / LABELS_NAME).unlink()
    assert prepare(config) == manifest
    assert read_labels(str(output), manifest).hashes.tolist() == labels.hashes.tolist()
    assert {name: state for name, state in files_of(output).items() if name.endswith(".parquet")} == {
        name: state for name, state in after.items() if name.endswith(".parquet")
    }


def test_shards_are_larger_where_there_would_be_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "FEWEST_ROWS", 2)
    assert run_module.choose_rows_per_shard(19_999) == 2
    assert run_module.choose_rows_per_shard(20_001) == 3
    assert run_module.choose_rows_per_shard(100_000_000) == 10_000


@pytest.mark.usefixtures("ray_session")
def test_changed_input_or_settings_are_refused_unless_overwrite(tmp_path: Path) -> None:
    source, output = write_people(tmp_path / "in"), tmp_path / "out"
    config = PrepareConfig(input=str(source), output=str(output), rows_per_shard=4)
    prepare(config)
    (output / "mine.txt").write_text("not of prepare")
    before = files_of(output)
    with pytest.raises(ShardMismatch, match=r"size=128, not 96.*overwrite=true"):
        prepare(config.model_copy(update={"size": 96}))
    (source / "person 1" / "0.jpg").unlink()
    with pytest.raises(ShardMismatch, match="other input"):
        prepare(config)
    assert files_of(output) == before

    manifest = prepare(config.model_copy(update={"overwrite": True, "rows_per_shard": 100}))
    assert manifest.num_images == 7
    left = {path.name for path in output.glob("*.parquet")}
    assert left == {shard.file for shard in manifest.shards}
    assert (output / "mine.txt").read_text() == "not of prepare"


@pytest.mark.usefixtures("ray_session")
def test_an_archive_gives_the_shards_of_the_folder(tmp_path: Path) -> None:
    source = write_people(tmp_path / "in")
    with tarfile.open(tmp_path / "faces.tar.gz", "w:gz") as archive:
        archive.add(source, "faces")
    common = {"rows_per_shard": 4, "contact_sheet": False}
    folder = prepare(PrepareConfig(input=str(source), output=str(tmp_path / "a"), **common))
    packed = prepare(PrepareConfig(input=str(tmp_path / "faces.tar.gz"), output=(tmp_path / "b").as_uri(), **common))
    assert packed.num_images == folder.num_images == 8
    first, second = rows_of(tmp_path / "a", folder), rows_of(tmp_path / "b", packed)
    order = lambda row: row["source"]  # noqa: E731
    assert sorted(first, key=order) == sorted(second, key=order)


@pytest.mark.usefixtures("ray_session")
def test_synthetic_rows_carry_their_parameters(tmp_path: Path) -> None:
    address = "synthetic://people=4,images=3,size=128,seed=2"
    manifest = prepare(PrepareConfig(input=address, output=str(tmp_path / "out"), landmarks="exact", min_sharpness=0))
    assert manifest.synthetic
    assert (manifest.num_images, manifest.num_identities) == (12, 4)
    rows = rows_of(tmp_path / "out", manifest)
    by_person: dict[str, set[tuple[float, ...]]] = {}
    for row in rows:
        by_person.setdefault(row["identity"], set()).add(tuple(row["identity_parameters"]))
        assert len(row["view"]) == 6
    assert all(len(parameters) == 1 for parameters in by_person.values())
    assert len({tuple(row["attribute_parameters"]) for row in rows}) == 12


@pytest.mark.usefixtures("ray_session")
def test_input_without_usable_pictures_is_refused_with_the_reasons(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in/a/1.txt").write_text("x")
    (tmp_path / "in/a/2.png").write_bytes(encode_image(np.full((100, 100, 3), 50, np.uint8), "png"))
    with pytest.raises(InputMissing, match=r"1 no_face") as caught:
        prepare(PrepareConfig(input=str(tmp_path / "in"), output=str(tmp_path / "out")))
    assert "1 not_an_image" in str(caught.value)
    assert not (tmp_path / "out/manifest.json").exists()


def test_missing_and_empty_input_is_refused_in_one_line(tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    (tmp_path / "empty" / "nobody").mkdir(parents=True)
    (tmp_path / "file.txt").write_text("neither folder nor archive")
    for name, message in {"absent": "no such folder", "empty": "holds no pictures", "file.txt": "neither"}.items():
        with pytest.raises(InputMissing, match=message) as caught:
            prepare(PrepareConfig(input=str(tmp_path / name), output=output))
        assert "\n" not in str(caught.value)
    with pytest.raises(InputMissing, match="cannot be opened"):
        prepare(PrepareConfig(input="gopher://host/faces", output=output))
    assert not (tmp_path / "out").exists()


def test_settings_that_cannot_work_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = write_people(tmp_path / "in")
    with pytest.raises(ConfigInvalid, match="people"):
        prepare(PrepareConfig(input="synthetic://people=no", output=str(tmp_path / "out")))
    with pytest.raises(ConfigInvalid, match="lies inside the input"):
        prepare(PrepareConfig(input=str(source), output=str(source / "shards")))
    with pytest.raises(DetectorUnavailable):
        prepare(PrepareConfig(input=str(source), output=str(tmp_path / "out"), detector="absent.onnx"))
    with pytest.raises(ValidationError, match="arcface_112"):
        PrepareConfig(input="-", output="-", template="mona_lisa")
    with pytest.raises(ValidationError, match=r"validation_fraction=0\.5 and test_fraction=0\.5 leave nobody"):
        PrepareConfig(input="-", output="-", validation_fraction=0.5, test_fraction=0.5)
    with pytest.raises(ValidationError, match="rows_per_shrad"):
        PrepareConfig(input="-", output="-", rows_per_shrad=3)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("ray_session")
def test_an_error_in_a_worker_keeps_its_type_and_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_people(tmp_path / "in")
    make_shards = run_module._make_shards

    def move_away_and_make(*arguments: object, **settings: object) -> None:
        source.rename(tmp_path / "moved")
        make_shards(*arguments, **settings)

    monkeypatch.setattr(run_module, "_make_shards", move_away_and_make)
    with pytest.raises(InputMissing, match="not visible on") as caught:
        prepare(PrepareConfig(input=str(source), output=str(tmp_path / "out")))
    assert type(caught.value) is InputMissing, "not the class in which Ray wraps it, with a traceback as its text"
    assert "\n" not in str(caught.value)


_DRIVER = """
import sys
import ray
from fusionray.data.prepare import PrepareConfig, prepare
ray.init(num_cpus=1, include_dashboard=False, _temp_dir=sys.argv[3], log_to_driver=False)
prepare(PrepareConfig(input=sys.argv[1], output=sys.argv[2], rows_per_shard=8, workers=1))
"""


@pytest.mark.slow(seconds=30)
@pytest.mark.usefixtures("ray_session")
def test_a_killed_run_is_continued_and_ends_as_if_it_had_not_been_killed(tmp_path: Path) -> None:
    address = "synthetic://people=24,images=4,size=128,seed=1"
    output, whole = tmp_path / "out", tmp_path / "whole"
    script = tmp_path / "driver.py"
    script.write_text(_DRIVER)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "platform")}
    # Ray's sockets need a short path.
    ray_folder = Path(tempfile.mkdtemp(prefix="fr-kill-"))
    log_file = tmp_path / "driver.log"
    with log_file.open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, str(script), address, str(output), str(ray_folder)],
            env=environment,
            stderr=log,
            stdout=log,
            start_new_session=True,
        )
    try:
        wait_for(lambda: len(list(output.glob("parts/*.json"))) >= 2 or driver.poll() is not None, seconds=120)
        assert driver.poll() is None, f"the run ended before it could be killed: {log_file.read_text()[-2000:]}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        # Its Ray ends a moment later, and may still write until then.
        wait_for(lambda: not find_processes(str(ray_folder)), seconds=30)
        shutil.rmtree(ray_folder)
    done = {path.name: path.stat().st_ino for path in output.glob("shard-*.parquet")}
    assert 2 <= len(done) < 12
    assert not (output / "manifest.json").exists()

    config = PrepareConfig(input=address, output=str(output), rows_per_shard=8)
    manifest = prepare(config)
    assert all(manifest.splits[split].identities >= least for split, least in (("test", 2), ("validation", 1)))
    kept = [path for path in output.glob("shard-*.parquet") if done.get(path.name) == path.stat().st_ino]
    assert len(kept) >= 2
    assert not list(output.rglob("*.part"))
    uninterrupted = prepare(config.model_copy(update={"output": str(whole)}))
    assert manifest == uninterrupted
