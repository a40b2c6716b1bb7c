"""A family that nobody else knows of goes the whole way, on a real Ray.

It is prepared, tried, trained, resumed, tuned, evaluated, exported and served.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from fusionray.bundle.bundle import Bundle
from fusionray.checkpoint.info import list_checkpoints, read_info
from fusionray.checkpoint.reader import load_tensors
from fusionray.config import validate
from fusionray.data.prepare import PrepareConfig, prepare
from fusionray.data.shards import read_manifest
from fusionray.environment import KEY_VARIABLE, ROOT_VARIABLE
from fusionray.errors import ShardMismatch
from fusionray.evaluation.config import EvaluateConfig
from fusionray.evaluation.evaluate import evaluate
from fusionray.export.export import ExportConfig, export
from fusionray.faces.image_files.decode import ImageLimits, decode_image, encode_image
from fusionray.ray_cluster.connection import find_free_port
from fusionray.runtime.tasks import open_runner
from fusionray.safety.verify import verify
from fusionray.training.config import TrainConfig
from fusionray.training.dry_run.dry_run import dry_run
from fusionray.training.train import TrainResult, train
from fusionray.tuning.config import TuneConfig
from fusionray.tuning.driver import tune
from tests.support.tiny_shards import write_tiny_shards
from tests.support.toy_family import Painter

# Ray 2.60 warns of its own defaults whenever a DataContext is made.
pytestmark = [
    pytest.mark.usefixtures("ray_session"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context"),
]

SIZE, PICTURES, BATCH, IMAGES = 32, 40, 8, 160


def draw_picture(number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Draw blocks of colours about a colour of its own, uint8 [48,56,3]."""
    random = np.random.default_rng(number)
    blocks = random.uniform(30, 220, 3) + random.normal(0, 60, (12, 14, 3))
    return np.kron(blocks.clip(0, 255), np.ones((4, 4, 1))).astype(np.uint8)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory, ray_session: None) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    (folder / "pictures").mkdir()
    for number in range(PICTURES):
        (folder / "pictures" / f"{number:03d}.png").write_bytes(encode_image(draw_picture(number), "png"))
    smear = cv2.GaussianBlur(draw_picture(0), (0, 0), 8.0)
    (folder / "pictures" / "smear.png").write_bytes(encode_image(smear, "png"))
    (folder / "pictures" / "small.png").write_bytes(encode_image(draw_picture(0)[: SIZE - 1], "png"))
    prepare(
        PrepareConfig(
            input=str(folder / "pictures"),
            output=str(folder / "shards"),
            task="pictures",
            size=SIZE,
            image_format="png",
            min_image_side=16,
            rows_per_shard=16,
            workers=1,
        )
    )
    return folder / "shards"


def build_tree(shards: Path, output: Path) -> dict[str, Any]:
    return {
        "run": {"name": "toy", "output": str(output)},
        "data": {"shards": str(shards), "size": SIZE, "shuffle_buffer_rows": 16},
        "recipe": {"name": "colour_transfer"},
        "engine": {"global_batch": BATCH},
        "budget": {
            "images": IMAGES,
            "checkpoint_every_images": IMAGES // 2,
            "log_every_images": IMAGES // 2,
            "validate_every_images": IMAGES // 2,
        },
        "workers": {"cpus_per_worker": 0.5, "threads": 1, "bind": False, "warm_spares": False},
    }


def build_config(shards: Path, output: Path) -> TrainConfig:
    return validate(TrainConfig, build_tree(shards, output), "tests")


@pytest.fixture(scope="module")
def trained(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainConfig, TrainResult]:
    config = build_config(shards, tmp_path_factory.mktemp("runs"))
    return config, train(config)


def test_a_dry_run_takes_a_step_without_faces(shards: Path, tmp_path: Path) -> None:
    said: list[str] = []
    found = dry_run(build_config(shards, tmp_path), said.append)
    assert set(found.losses) == {"colours"}
    assert any("painter" in line for line in said)


@pytest.mark.slow(seconds=20)
def test_it_learns_from_pictures_and_says_how_to_rebuild_it(trained: tuple[TrainConfig, TrainResult]) -> None:
    config, result = trained
    info, run = read_info(result.checkpoint), result.run_folder
    assert info.images_seen == IMAGES
    assert info.num_people == 0
    assert info.metadata == {"painter_width": 8}
    last, first = (read_info(folder).metrics["validation_colour_error"] for folder in list_checkpoints(run))
    assert last < first
    assert isinstance(config.family.load_model(result.checkpoint), Painter)


@pytest.mark.slow(seconds=45)
def test_a_run_that_is_resumed_ends_bit_for_bit_where_an_unbroken_one_does(
    trained: tuple[TrainConfig, TrainResult],
) -> None:
    config, result = trained
    unbroken = load_tensors(result.checkpoint, "")
    shutil.rmtree(result.checkpoint)
    resumed = train(config)
    assert resumed.checkpoint == result.checkpoint
    found = load_tensors(resumed.checkpoint, "")
    assert found.keys() == unbroken.keys()
    assert all(torch.equal(found[name], unbroken[name]) for name in unbroken)


def test_pictures_become_crops_of_one_size_without_people(shards: Path) -> None:
    manifest = read_manifest(str(shards))
    assert (manifest.task, manifest.template, manifest.synthetic) == ("pictures", "", False)
    assert manifest.dropped == {"blurred": 1, "too_small": 1}
    assert manifest.num_images == manifest.num_identities == PICTURES
    assert all(manifest.splits[split].rows > 1 for split in ("train", "validation", "test"))
    rows = [row for file in manifest.files("train") for row in pq.read_table(shards / file).to_pylist()]
    assert {tuple(row) for row in rows} == {("image", "source", "width", "height")}
    for row in rows[:4]:
        assert (row["width"], row["height"]) == (56, 48)
        middle = cv2.resize(draw_picture(int(row["source"][:3]))[:, 4:52], (SIZE, SIZE), interpolation=cv2.INTER_AREA)
        np.testing.assert_array_equal(decode_image(row["image"], ImageLimits(min_side=1)), middle)


def test_shards_of_another_task_are_refused_in_one_line(shards: Path, tmp_path: Path) -> None:
    write_tiny_shards(tmp_path / "faces", size=SIZE)
    with pytest.raises(ShardMismatch, match=r"shards hold faces .* but this run needs pictures") as caught:
        train(build_config(tmp_path / "faces", tmp_path / "runs"))
    assert "\n" not in str(caught.value)
    tree = build_tree(shards, tmp_path / "runs") | {"recipe": {"name": "identity"}}
    with pytest.raises(ShardMismatch, match=r"shards hold pictures .* but this run needs faces"):
        train(validate(TrainConfig, tree, "tests"))


@pytest.mark.slow(seconds=60)
def test_it_is_tuned(shards: Path, tmp_path: Path) -> None:
    tree = build_tree(shards, tmp_path)
    del tree["run"]
    found = tune(
        TuneConfig(
            name="toy",
            output=str(tmp_path),
            train=tree,
            space={"recipe.optimizer.base_lr": {"loguniform": [1e-3, 1e-1]}},
            search="random",
            trials=2,
            metric="validation_colour_error",
            mode="min",
        )
    )
    assert found.best.status == "finished"
    assert len(found.figures.figures) > 0


@pytest.fixture(scope="module")
def bundle(trained: tuple[TrainConfig, TrainResult]) -> Bundle:
    run = trained[1].run_folder
    return export(ExportConfig(checkpoint=run, output=f"{run}-bundle", precisions=("fp32", "fp16")))


@pytest.mark.slow(seconds=3)
def test_it_is_exported_through_the_parity_gate(bundle: Bundle) -> None:
    described = bundle.description
    assert (described.task, described.size, described.inputs) == ("colour_transfer", SIZE, ("source", "target"))
    assert described.parity is not None
    assert 0 < described.parity.largest_difference < 1e-4
    assert described.variants["fp16"].measured_on == "held-out crops of its shards"


@pytest.mark.slow(seconds=15)
def test_it_is_evaluated_as_a_run_and_as_a_bundle(
    shards: Path, trained: tuple[TrainConfig, TrainResult], bundle: Bundle, tmp_path: Path
) -> None:
    found = []
    for number, model in enumerate((trained[1].run_folder, str(bundle.folder))):
        config = EvaluateConfig(model=model, data=str(shards), output=str(tmp_path / str(number)), bootstrap_rounds=10)
        figures = evaluate(config).figures.figures
        found.append({name: figure.value for name, figure in figures.items()})
    run, exported = found
    assert exported == pytest.approx(run, abs=0.3)
    assert run["held_out_draws"] == read_manifest(str(shards)).splits["test"].rows
    assert run["ssim"] > run["ssim_first"]
    assert run["l1"] < run["l1_first"]


@pytest.mark.slow(seconds=40)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_it_is_served(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray import serve

    from fusionray.serving.application import run
    from fusionray.serving.config import ModelConfig, ServeConfig

    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    port, pictures = find_free_port(), {"source": draw_picture(100), "target": draw_picture(101)}
    run(ServeConfig(models=(ModelConfig(bundle=str(bundle.folder)),)), port=port, blocking=False)
    try:
        files = {name: encode_image(picture, "png") for name, picture in pictures.items()}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/colour_transfer", files=files, timeout=30)
    finally:
        serve.shutdown()
    assert answer.status_code == 200, answer.text
    assert verify(answer.content).holds
    np.testing.assert_array_equal(
        decode_image(answer.content, ImageLimits(min_side=1)), open_runner(bundle).run(pictures)
    )
