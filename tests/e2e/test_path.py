"""The whole path by its own commands, with a driver that is killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from fusionray.safety.provenance import read_provenance

ROOT = Path(__file__).resolve().parents[2]
WORLD = "synthetic://people=24,images=6,size=96,seed=3"
RUN_SECONDS = 240

TINY = {
    "preset": "tiny-64",
    "run": {"name": "fusion"},
    "recipe": {
        "generator": {"channels": [8, 16, 24], "style_length": 32},
        "discriminator": {"channels": [8, 16]},
    },
    "data": {"pool_rows": 32, "validation_images": 16},
    "engine": {"global_batch": 16, "schedule": {"warmup_images": 32}},
    "budget": {"images": 960, "checkpoint_images": 160, "log_images": 32, "preview_images": 480},
    "workers": {"num_workers": 2, "threads": 1},
}
ENCODER = {
    "preset": "identity-small",
    "run": {"name": "encoder"},
    "recipe": {"encoder": {"channels": [8, 16, 24, 32]}},
    "data": {"pool_rows": 32, "validation_images": 16},
    "engine": {"global_batch": 16, "schedule": {"warmup_images": 32}},
    "budget": {"images": 160, "checkpoint_images": 160, "log_images": 80, "preview_images": 160},
    "workers": {"num_workers": 2, "threads": 1},
}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fusionray.cli", *arguments]


def run(*arguments: str, timeout: float = RUN_SECONDS) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )


def settings(folder: Path, name: str, tree: dict[str, object]) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(tree))
    return str(path)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Prepared shards and a trained encoder."""
    folder = tmp_path_factory.mktemp("path")
    prepared = run("prepare", WORLD, str(folder / "shards"), "size=64", "validation_fraction=0.2")
    assert prepared.returncode == 0, prepared.stderr
    encoder = settings(folder, "encoder", ENCODER)
    trained = run("train", "--config", encoder, "--output", str(folder / "runs"), f"data.shards={folder / 'shards'}")
    assert trained.returncode == 0, trained.stderr
    assert "verification_accuracy" in trained.stdout
    return {"folder": folder, "shards": folder / "shards", "runs": folder / "runs"}


def fusion_arguments(path: dict[str, Path], *more: str) -> list[str]:
    config = settings(path["folder"], "fusion", TINY)
    return [
        "train",
        "--config",
        config,
        "--output",
        str(path["runs"]),
        f"data.shards={path['shards']}",
        f"recipe.identity_encoder={path['runs'] / 'encoder'}",
        *more,
    ]


def checkpoints(path: dict[str, Path]) -> list[int]:
    folders = (path["runs"] / "fusion").glob("checkpoint-*/info.json")
    return sorted(int(folder.parent.name.removeprefix("checkpoint-")) for folder in folders)


@pytest.fixture(scope="module")
def fusion_run(path: dict[str, Path]) -> dict[str, object]:
    """A fusion run whose driver is killed after its first checkpoint and that the same command then finishes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    driver = subprocess.Popen(
        command(*fusion_arguments(path)), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + RUN_SECONDS
    while not checkpoints(path) and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    saved = checkpoints(path)
    again = run(*fusion_arguments(path))
    return {"saved": saved, "again": again}


def test_killed_driver_goes_on_from_its_last_checkpoint(path: dict[str, Path], fusion_run: dict[str, object]) -> None:
    saved = fusion_run["saved"]
    again = fusion_run["again"]
    assert isinstance(saved, list)
    assert isinstance(again, subprocess.CompletedProcess)
    assert saved, "the first driver made a checkpoint before it was killed"
    assert saved[-1] < TINY["budget"]["images"]  # type: ignore[index]
    assert again.returncode == 0, again.stderr
    assert checkpoints(path)[-1] == TINY["budget"]["images"]  # type: ignore[index]
    positions = logged_positions(path)
    # What was logged after the checkpoint and before the kill is repeated; what lies before it is not trained again.
    repeated = {position for position in positions if positions.count(position) > 1}
    assert all(position > saved[0] for position in repeated)
    assert positions[-1] == TINY["budget"]["images"]  # type: ignore[index]


def logged_positions(path: dict[str, Path]) -> list[int]:
    from fusionray.ops.tracking import make_client

    client = make_client(f"sqlite:///{path['runs']}/mlflow.db")
    experiment = client.get_experiment_by_name("fusionray")
    runs = client.search_runs([experiment.experiment_id], filter_string="tags.`fusionray.run` = 'fusion'")
    assert len(runs) == 1, "a run that goes on stays one run in the tracker"
    history = client.get_metric_history(runs[0].info.run_id, "grad_norm_generator")
    return [entry.step for entry in sorted(history, key=lambda entry: entry.timestamp)]


def test_finished_run_has_nothing_left_to_do(path: dict[str, Path], fusion_run: dict[str, object]) -> None:
    before = checkpoints(path)
    again = run(*fusion_arguments(path))
    assert again.returncode == 0, again.stderr
    assert checkpoints(path) == before


def test_run_of_the_same_name_with_another_setting_is_refused(
    path: dict[str, Path], fusion_run: dict[str, object]
) -> None:
    other = run(*fusion_arguments(path, "recipe.weights.identity=9"))
    assert other.returncode == 1
    assert len(other.stderr.strip().splitlines()[-1:]) == 1
    assert "recipe.weights.identity (2.0 before, 9.0 now)" in other.stderr


@pytest.fixture(scope="module")
def bundle(path: dict[str, Path], fusion_run: dict[str, object]) -> Path:
    """The exported bundle."""
    exported = run("export", str(path["runs"] / "fusion"), "--output", str(path["folder"] / "bundle"))
    assert exported.returncode == 0, exported.stderr
    return path["folder"] / "bundle"


def test_exported_bundle_names_its_lineage_and_fuses_two_files(path: dict[str, Path], bundle: Path) -> None:
    from fusionray.data import synthetic

    description = json.loads((bundle / "bundle.json").read_text())
    assert description["lineage"]["config"]["run"]["name"] == "fusion"
    assert description["parity"]["largest_difference"] <= description["parity"]["tolerance"]
    people = synthetic.sample_identities(2, seed=8)
    pictures = synthetic.render(people, synthetic.neutral_attributes(2), 192)
    for name, picture in zip(("source", "target"), pictures, strict=True):
        pixels = (picture.permute(1, 2, 0).numpy() * 255).astype(np.uint8)
        Image.fromarray(pixels).save(path["folder"] / f"{name}.png")
    output = path["folder"] / "fused.png"
    source, target = (str(path["folder"] / f"{name}.png") for name in ("source", "target"))
    fused = run("fuse", source, target, str(output), "--bundle", str(bundle))
    assert fused.returncode == 0, fused.stderr
    with Image.open(output) as picture:
        assert picture.size == (192, 192)
        changed = np.abs(np.asarray(picture, np.int16) - np.asarray(Image.open(target), np.int16)).max()
    assert changed > 0
    provenance = read_provenance(output.read_bytes())
    assert provenance is not None
    assert "AlgorithmicMedia" in provenance.digital_source_type


def test_bundle_with_a_wrong_hash_is_refused(path: dict[str, Path], bundle: Path) -> None:
    import shutil

    damaged = path["folder"] / "damaged"
    shutil.copytree(bundle, damaged)
    with (damaged / "generator.onnx").open("r+b") as file:
        file.seek(200)
        file.write(b"\0\1\2\3")
    refused = run("fuse", "a.png", "b.png", str(path["folder"] / "c.png"), "--bundle", str(damaged))
    assert refused.returncode == 1
    served = run("serve", "--bundle", str(damaged))
    assert served.returncode == 1
    assert "generator.onnx" in served.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("prepare", "/nowhere/faces", "{folder}/out"), "/nowhere/faces"),
        (("prepare", "{folder}/empty", "{folder}/out"), "empty"),
        (("train", "--preset", "tiny-64", "data.shards={folder}/shards", "engine.batch=3"), "engine.batch"),
        (("train", "--preset", "tiny-96", "data.shards={folder}/shards"), "tiny-64"),
        (("train", "--preset", "fast-128", "data.shards={folder}/shards", "--output", "{folder}/o"), "64 px"),
        (("train", "--preset", "tiny-64", "data.shards={folder}/none", "--output", "{folder}/o"), "none"),
        (("export", "{folder}/none", "--output", "{folder}/b"), "none"),
        (("fuse", "{folder}/a.png", "{folder}/b.png", "{folder}/c.png", "--bundle", "{folder}/none"), "none"),
    ],
)
def test_bad_input_gets_one_clear_line(path: dict[str, Path], arguments: tuple[str, ...], words: str) -> None:
    (path["folder"] / "empty").mkdir(exist_ok=True)
    refused = run(*(argument.format(folder=path["folder"]) for argument in arguments))
    assert refused.returncode == 1
    lines = refused.stderr.strip().splitlines()
    assert len(lines) == 1, refused.stderr
    assert words in lines[0]
