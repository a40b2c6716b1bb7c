from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fusionray.data.decoding import CropDecoder
from fusionray.data.shard_files import read_split
from fusionray.data.shards import read_manifest
from fusionray.data.synthetic import ATTRIBUTE_NAMES, attributes_in_crop, sample_attributes
from fusionray.recipes.attributes import AttributesRecipeConfig
from fusionray.recipes.identity import IdentityRecipeConfig
from fusionray.recipes.registry import build_recipe
from fusionray.training.config import DataConfig, TrainConfig
from fusionray.training.run import validation as validation_module
from fusionray.training.run.validation import Validation
from fusionray.types import FaceBatch
from tests.support.tiny_fusion import ENCODER
from tests.support.tiny_shards import SIZE, write_tiny_shards
from tests.training.engine.process_group import run_group


def look_at(folder: Path, validation_people: int) -> tuple[list[FaceBatch], dict[str, float]]:
    """Look at a reader that learned nothing with shards that hold one picture of each person."""
    manifest = write_tiny_shards(folder, pictures=1, validation_people=validation_people, synthetic=True)
    config = TrainConfig(data=DataConfig(shards=str(folder), size=SIZE), recipe=AttributesRecipeConfig(encoder=ENCODER))
    recipe = build_recipe(config, config.dataset_info(num_people=8, synthetic=True), {})
    decoder = CropDecoder(SIZE, threads=1)
    said: list[str] = []
    validation = Validation(config, manifest, decoder, torch.device("cpu"), said.append, dependencies={})
    try:
        metrics, picture = validation.evaluate(recipe, {"reader": recipe.networks["reader"].eval()})
        held_out = validation.held_out
        batches = [] if held_out is None else list(held_out.batches(held_out.draw(1, 0), 64))
    finally:
        decoder.close()
    assert picture is None
    assert said == []
    assert all(isinstance(batch, FaceBatch) for batch in batches)
    return batches, metrics  # type: ignore[return-value]


@pytest.mark.parametrize("validation_people", [1, 3])
def test_a_reader_is_measured_on_held_out_people(tmp_path: Path, validation_people: int) -> None:
    batches, metrics = look_at(tmp_path, validation_people)
    assert set(metrics) == {"validation_pose_error", "validation_expression_error", "validation_light_error"}
    (batch,) = batches
    assert batch.attributes is not None
    assert batch.attributes.shape == (validation_people, len(ATTRIBUTE_NAMES))
    first = attributes_in_crop(sample_attributes(1, 1000 * 8), torch.tensor([[[0.5, 0, 0.25], [0, 0.5, 0.25]]]))
    torch.testing.assert_close(batch.attributes[:1], first)


def test_without_held_out_people_nothing_is_measured(tmp_path: Path) -> None:
    assert look_at(tmp_path, 0) == ([], {})


def measure_identity(rank: int, folder: str) -> dict[str, Any]:
    """Validate an encoder that learned nothing, in batches of 4."""
    validation_module.EVALUATION_BATCH = 4
    config = TrainConfig(data=DataConfig(shards=folder, size=SIZE), recipe=IdentityRecipeConfig(encoder=ENCODER))
    torch.manual_seed(0)
    recipe = build_recipe(config, config.dataset_info(num_people=8, synthetic=True), {})
    classifier = recipe.networks["classifier"].eval()
    del rank
    decoder = CropDecoder(SIZE, threads=1)
    group = dist.group.WORLD if dist.is_initialized() else None
    rows: list[int] = []
    measure = recipe.measure

    def count(networks: Any, batch: Any) -> dict[str, torch.Tensor]:
        rows.append(len(batch))
        return measure(networks, batch)

    recipe.measure = count  # type: ignore[method-assign]
    try:
        validation = Validation(
            config, read_manifest(folder), decoder, torch.device("cpu"), print, dependencies={}, group=group
        )
        return {"metrics": validation.evaluate(recipe, {"classifier": classifier})[0], "rows": rows}
    finally:
        decoder.close()


def test_ranks_share_the_held_out_rows_and_find_what_one_rank_finds(tmp_path: Path) -> None:
    shards, ranks = tmp_path / "shards", tmp_path / "ranks"
    ranks.mkdir()
    write_tiny_shards(shards, pictures=3, validation_people=6, synthetic=True)
    first, second = run_group(measure_identity, 2, ranks, str(shards))
    assert first["rows"] == [4, 4, 2]
    assert second["rows"] == [4, 4]
    assert second["metrics"] == {}
    alone = measure_identity(0, str(shards))
    assert alone["rows"] == [4, 4, 4, 4, 2]
    assert first["metrics"] == alone["metrics"]
    assert len(alone["metrics"]) == 3


def test_no_more_files_are_read_than_hold_the_rows(tmp_path: Path) -> None:
    manifest = write_tiny_shards(tmp_path, pictures=4, shards=3)
    files = manifest.files("train")
    for file in files[1:]:
        (tmp_path / file).unlink()
    first = next(shard for shard in manifest.shards if shard.file == files[0])
    assert len(read_split(str(tmp_path), manifest, "train", limit=first.rows - 1)) == first.rows - 1
