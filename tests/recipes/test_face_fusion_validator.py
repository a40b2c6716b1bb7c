from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fusionray.checkpoint.evaluators import EvaluatorPaths
from fusionray.checkpoint.info import find_checkpoint
from fusionray.data.decoding import CropDecoder
from fusionray.data.held_out import HeldOutCrops
from fusionray.data.shards import Manifest
from fusionray.nets.pixels import to_float, to_uint8
from fusionray.recipes.face_fusion.validator import PairValidator, RecipeFusionModel
from fusionray.training.config import DataConfig, TrainConfig
from fusionray.training.run.validation import Validation
from fusionray.types import PairBatch
from tests.support.tiny_fusion import SIZE, build_config, build_pairs, build_recipe, save_encoder
from tests.support.tiny_world import PEOPLE, save_reader, write_world

CPU = torch.device("cpu")


class World:
    """A world, its evaluators, and the settings of a fusion that learns from it."""

    def __init__(self, folder: Path, *, photographs: bool = False) -> None:
        self.manifest: Manifest = write_world(folder / "shards", photographs=photographs)
        save_encoder(folder / "evaluator")
        save_reader(folder / "reader")
        self.config = TrainConfig(data=DataConfig(shards=str(folder / "shards"), size=SIZE), recipe=build_config())
        self.evaluator, self.reader = find_checkpoint(str(folder / "evaluator")), str(folder / "reader")
        self.decoder = CropDecoder(SIZE, threads=1)

        self.held_out = HeldOutCrops(
            self.config.data.shards, self.manifest, 512, self.decoder, self.config.family.collate, with_regions=False
        )

    def open_validator(self) -> PairValidator:
        evaluators = EvaluatorPaths(self.evaluator, self.reader, None, False)
        return PairValidator(self.config, evaluators, self.held_out, CPU)

    def validate(self, *, with_evaluator: bool = True) -> dict[str, float]:
        recipe = build_recipe(seed=3)
        dependencies = (
            {"validation.evaluator": self.evaluator, "validation.attributes": self.reader} if with_evaluator else {}
        )
        messages: list[str] = []
        validation = Validation(
            self.config, self.manifest, self.decoder, CPU, messages.append, dependencies=dependencies
        )
        metrics, picture = validation.evaluate(recipe, {"generator": recipe.networks["generator"].eval()})
        assert picture is not None
        assert messages == []
        return metrics


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("validator"))


def test_a_validation_has_the_keys_of_an_evaluation(world: World) -> None:
    metrics = world.validate()
    wanted = (
        "retrieval_top1",
        "ssim_gap_closed",
        "sharpness_ratio",
        "pose_error_ratio",
        "expression_error",
        "l1_to_truth",
    )
    assert {f"validation_{key}" for key in wanted} <= metrics.keys()
    assert world.validate() == metrics  # the same pairs each time


def test_without_an_evaluator_only_the_recipe_has_metrics(world: World) -> None:
    metrics = world.validate(with_evaluator=False)
    assert set(metrics) == {
        "validation_identity_cosine",
        "validation_nearer_to_source",
        "validation_mask_mean",
        "validation_l1_to_truth",
    }


def test_the_metrics_of_the_evaluator_replace_those_of_the_recipe(world: World) -> None:
    recipe = build_recipe(seed=3)
    validator = world.open_validator()
    batches = list(world.held_out.batches(validator.draws, len(validator.draws)))
    columns = validator.measure(recipe, {"generator": recipe.networks["generator"].eval()}, batches[0])
    alone = validator.summarise(columns)
    assert world.validate()["validation_nearer_to_source"] == alone["validation_nearer_to_source"]


def test_only_people_of_the_validation_split_are_used(world: World) -> None:
    validator = world.open_validator()
    first = PEOPLE["train"]
    wanted = {f"person-{person:06d}" for person in range(first, first + PEOPLE["validation"])}
    assert set(validator.source_N) == set(validator.templates.person) == wanted


def test_photographs_get_the_metrics_that_need_no_truth(tmp_path: Path) -> None:
    metrics = World(tmp_path, photographs=True).validate()
    assert "validation_retrieval_top1" in metrics
    assert "validation_ssim_gap_closed" not in metrics


def test_a_fusion_is_validated_as_it_would_be_exported() -> None:
    recipe, pairs = build_recipe(), build_pairs(2)
    networks = {"generator": recipe.networks["generator"].eval()}
    fused = RecipeFusionModel(recipe, networks).fuse(pairs.source, pairs.target)
    wanted = recipe.fuse(networks, to_float(pairs.source), to_float(pairs.target)).output
    assert torch.equal(fused, to_uint8(wanted))


def test_only_regions_that_are_skin_are_measured_as_skin() -> None:
    validator = PairValidator.__new__(PairValidator)
    seen = []

    class Recording:
        def compute(self, model: object, batch: PairBatch) -> dict[str, object]:
            seen.append(batch.region)
            return {}

    validator.metrics = Recording()  # type: ignore[assignment]
    region = torch.zeros(2, 1, SIZE, SIZE, dtype=torch.uint8)
    recipe = build_recipe(seed=3)
    for all_skin in (True, False):
        recipe.all_skin = all_skin
        validator.measure(recipe, {}, replace(build_pairs(2), region=region))
    assert seen == [region, None]
