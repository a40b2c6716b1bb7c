"""What families of pairs of style and content have in common: dependencies, batches, validation and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch

from fusionray.checkpoint.reader import load_tensors
from fusionray.nets.picture_encoder import PictureEncoder
from fusionray.nets.style_transfer import STRIDE
from fusionray.recipes.family import RecipeConfig, RecipeFamily, TrainSettings
from fusionray.recipes.measuring import HeldOutRows, PictureScorer
from fusionray.recipes.single_faces import noise_crops
from fusionray.recipes.style_transfer.encoder_recipe import PictureEncoderRecipeConfig
from fusionray.recipes.style_transfer.pair_recipe import StylePairs
from fusionray.recipes.style_transfer.perceptual import SUPERVISOR, PerceptualState, load_perceptual
from fusionray.recipes.style_transfer.scoring import METRIC_TABLE, StyleScorer
from fusionray.recipes.style_transfer.settings import PairRecipeConfig
from fusionray.recipes.style_transfer.validator import StyleValidator
from fusionray.types import DecodedRows

# Settings that name the networks on which a run depends.
PERCEPTUAL, EVALUATOR = "recipe.perceptual", "validation.evaluator"
# The two deepest maps of a picture encoder: what an evaluation compares contents by.
EVALUATED_LAYERS = (2, 3)

ConfigT = TypeVar("ConfigT", bound=PairRecipeConfig)


class PairFamily(RecipeFamily[ConfigT]):
    """Base of these families. Sources are styles, targets contents."""

    task = "pictures"
    num_roles = 2
    runner_inputs = ("style", "content")
    source_folder = "styles"
    fewest_images = 2  # one style has no others to contrast with
    evaluation = "pictures"
    evaluator = "preset:style-evaluator"
    metric_table = METRIC_TABLE

    def check(self, config: TrainSettings) -> None:
        """Check that the size of the pictures suits the network.

        Raises: ValueError.
        """
        if config.data.size % STRIDE:
            raise ValueError(
                f"data.size={config.data.size} must be a multiple of {STRIDE}, at which contents are encoded"
            )
        if config.validation.attributes is not None:
            raise ValueError(f"validation.attributes reads faces, and recipe.name={self.name} makes none; remove it")

    def dependencies(self, config: TrainSettings) -> dict[str, str]:
        """Name the perceptual network that supervises, and the one that scores the validation, if there is one."""
        named = {PERCEPTUAL: perceptual_of(config), EVALUATOR: config.validation.evaluator}
        return {key: location for key, location in named.items() if location is not None}

    def load_dependency(self, key: str, checkpoint: str) -> PerceptualState:
        """Load a perceptual network.

        Raises: CheckpointMissing, InputMissing.
        """
        del key
        return load_perceptual(checkpoint)

    def build_untrained(self, key: str, preset: RecipeConfig) -> PerceptualState:
        """Build a picture encoder with initial weights."""
        assert isinstance(preset, PictureEncoderRecipeConfig), f"{key} names a preset of the recipe {preset.name}"
        encoder = preset.encoder
        return PerceptualState("encoder", encoder.model_dump(mode="json"), PictureEncoder(encoder).state_dict())

    def check_dependencies(self, config: TrainSettings, loaded: Mapping[str, Any]) -> None:
        """Check that the evaluator differs from the network that supervises.

        Raises: ValueError if both have the same weights.
        """
        if EVALUATOR in loaded and loaded[EVALUATOR].is_same(loaded[PERCEPTUAL].build().state_dict()):
            raise ValueError(
                f"{EVALUATOR}={config.validation.evaluator}: is the network that supervises this run ({PERCEPTUAL}), "
                "so its scores are not independent; use another one, such as preset:style-evaluator"
            )

    def collate(self, roles: Sequence[DecodedRows]) -> StylePairs:
        """Pair styles and contents."""
        style, content = roles
        return StylePairs(style.image, content.image)

    def build_validator(
        self, config: TrainSettings, dependencies: Mapping[str, Any], held_out: HeldOutRows, device: torch.device
    ) -> StyleValidator | None:
        """Build a validator with the metrics of `fusionray evaluate`, if `validation.evaluator` is set."""
        if EVALUATOR not in dependencies:
            return None
        draws = held_out.draw(self.num_roles, config.run.seed, self.source_folder)
        return StyleValidator(StyleScorer(dependencies[EVALUATOR].build().to(device), EVALUATED_LAYERS), draws)

    def dummy_batch(self, config: TrainSettings, count: int) -> StylePairs:
        """Draw noise as styles and contents."""
        return StylePairs(*noise_crops(config, count))

    def check_evaluator(self, evaluator: str, checkpoint: str) -> None:
        """Check that an evaluator did not supervise the model of a checkpoint.

        Raises: ValueError if it did; CheckpointMissing, InputMissing.
        """
        if load_perceptual(evaluator).is_same(load_tensors(checkpoint, SUPERVISOR)):
            raise ValueError(
                f"evaluator={evaluator}: is the network that supervised {checkpoint}, so its scores are not "
                "independent; use another one, such as preset:style-evaluator"
            )

    def build_scorer(self, evaluator: str, device: torch.device) -> PictureScorer:
        """Build the scorer of an evaluation.

        Raises: CheckpointMissing, InputMissing.
        """
        return StyleScorer(load_perceptual(evaluator).build().to(device), EVALUATED_LAYERS)


def perceptual_of(config: TrainSettings) -> str:
    """Return the location of the supervising network of a configuration."""
    assert isinstance(config.recipe, PairRecipeConfig)
    return config.recipe.perceptual
