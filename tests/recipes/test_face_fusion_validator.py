from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusionray.checkpoint.evaluators import EvaluatorPaths
from fusionray.checkpoint.info import find_checkpoint
from fusionray.data.decoding import CropDecoder
from fusionray.data.held_out import HeldOutCrops
from fusionray.data.shards import Manifest
from fusionray.nets.pixels import to_float, to_uint8
from fusionray.recipes.face_fusion_validator import PairValidator, RecipeFusionModel
from fusionray.training.config import DataConfig, TrainConfig
from fusionray.training.run.validation import Validation
from tests.support.tiny_fusion import SIZE, build_config, build_pairs, build_recipe, save_encoder
from tests.support.tiny_world import PEOPLE, save_reader, write_world

CPU = torch.device("cpu")


class Place:
    """A world, its evaluators, and the settings of a fusion that learns from it."""

    def __init__(self, folder: Path, *, photographs: bool = False) -> None:
        self.manifest: Manifest = write_world(folder / "shards", photographs=photographs)
        save_encoder(folder / "judge")
        save_reader(folder / "reader")
        self.config = TrainConfig(data=DataConfig(shards=str(folder / "shards"), size=SIZE), recipe=build_config())
        self.evaluator, self.reader = find_checkpoint(str(folder / "judge")), str(folder / "reader")
        self.decoder = CropDecoder(SIZE, threads=1)

    def open_validator(self) -> PairValidator:
        held_out = HeldOutCrops(
            self.config.data.shards, self.manifest, 512, self.decoder, self.config.family.collate, with_regions=False
        )
        return PairValidator(self.config, EvaluatorPaths(self.evaluator, self.reader, None, False), held_out, CPU)

    def look(self, *, judged: bool = True) -> dict[str, float]:
        recipe = build_recipe(seed=3)
        dependencies = {"validation.evaluator": self.evaluator, "validation.attributes": self.reader} if judged else {}
        said: list[str] = []
        validation = Validation(self.config, self.manifest, self.decoder, CPU, said.append, dependencies=dependencies)
        metrics, picture = validation.evaluate(recipe, {"generator": recipe.networks["generator"].eval()})
        assert picture is not None
        assert said == []
        return metrics


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("court"))


def test_a_judged_look_tells_the_keys_of_an_evaluation(place: Place) -> None:
    metrics = place.look()
    wanted = (
        "retrieval_top1",
        "ssim_gap_closed",
        "sharpness_ratio",
        "pose_error_ratio",
        "expression_error",
        "l1_to_truth",
    )
    assert {f"validation_{key}" for key in wanted} <= metrics.keys()
    assert place.look() == metrics  # the same pairs each time


def test_without_a_judge_only_the_recipe_tells_of_itself(place: Place) -> None:
    metrics = place.look(judged=False)
    assert set(metrics) == {
        "validation_identity_cosine",
        "validation_nearer_to_source",
        "validation_mask_mean",
        "validation_l1_to_truth",
    }


def test_the_judge_has_the_last_word(place: Place) -> None:
    recipe = build_recipe(seed=3)
    alone = place.open_validator().validate(recipe, {"generator": recipe.networks["generator"].eval()})
    assert place.look()["validation_nearer_to_source"] == alone["validation_nearer_to_source"]


def test_only_people_of_the_validation_split_are_judged_on(place: Place) -> None:
    court = place.open_validator()
    first = PEOPLE["train"]
    wanted = {f"person-{person:06d}" for person in range(first, first + PEOPLE["validation"])}
    assert set(court.source_N) == set(court.templates.person) == wanted


def test_photographs_are_judged_by_what_needs_no_truth(tmp_path: Path) -> None:
    metrics = Place(tmp_path, photographs=True).look()
    assert "validation_retrieval_top1" in metrics
    assert "validation_ssim_gap_closed" not in metrics


def test_a_fusion_is_judged_as_it_would_be_delivered() -> None:
    recipe, pairs = build_recipe(), build_pairs(2)
    networks = {"generator": recipe.networks["generator"].eval()}
    fused = RecipeFusionModel(recipe, networks).fuse(pairs.source, pairs.target)
    wanted = recipe.fuse(networks, to_float(pairs.source), to_float(pairs.target)).output
    assert torch.equal(fused, to_uint8(wanted))
