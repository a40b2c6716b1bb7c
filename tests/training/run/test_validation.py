from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusionray.data.decoding import CropDecoder
from fusionray.data.synthetic import ATTRIBUTE_NAMES, attributes_in_crop, sample_attributes
from fusionray.recipes.attributes import AttributesRecipeConfig
from fusionray.recipes.registry import build_recipe
from fusionray.training.config import DataConfig, TrainConfig
from fusionray.training.run.validation import Validation
from fusionray.types import FaceBatch
from tests.support.tiny_fusion import ENCODER
from tests.support.tiny_shards import SIZE, write_tiny_shards


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
        held_out = validation.open_held_out()
        batches = [] if held_out is None else list(validation.batches(held_out))
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
