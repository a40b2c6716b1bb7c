"""The family of the style-transfer recipe: pairs of style and content in, a painting network out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fusionray.checkpoint.info import read_info
from fusionray.checkpoint.models import load_weights
from fusionray.checkpoint.reader import load_tensors
from fusionray.nets.picture_encoder import PictureEncoder
from fusionray.nets.style_transfer import STRIDE, StyleNetworkConfig, StyleTransferNetwork
from fusionray.recipes.family import (
    BundleExport,
    DatasetInfo,
    HeldOutRows,
    PictureScorer,
    RecipeConfig,
    RecipeFamily,
    TrainSettings,
)
from fusionray.recipes.registry import register
from fusionray.recipes.single_faces import noise_crops
from fusionray.recipes.style_transfer.encoder_recipe import PictureEncoderRecipeConfig
from fusionray.recipes.style_transfer.export import export_network
from fusionray.recipes.style_transfer.perceptual import PerceptualState, load_perceptual
from fusionray.recipes.style_transfer.recipe import StylePairs, StyleTransferRecipe, find_network
from fusionray.recipes.style_transfer.scoring import METRIC_TABLE, StyleScorer
from fusionray.recipes.style_transfer.settings import StyleTransferConfig
from fusionray.recipes.style_transfer.validator import StyleValidator
from fusionray.types import DecodedRows

# Settings that name the networks on which a run depends.
PERCEPTUAL, EVALUATOR = "recipe.perceptual", "validation.evaluator"
# Names in `state_tensors` of an engine.
EMA_NETWORK, SUPERVISOR = "averages.stylizer.network.", "frozen.perceptual."
# Side of the pictures of a network in memory, which may have any.
EXAMPLE_SIZE = 256
# The two deepest maps of a picture encoder: what an evaluation compares contents by.
EVALUATED_LAYERS = (2, 3)


class StyleTransferFamily(RecipeFamily[StyleTransferConfig]):
    """Style transfer; see `recipes.style_transfer.recipe`. Sources are styles, targets contents."""

    name = "style_transfer"
    Config = StyleTransferConfig
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
            raise ValueError("validation.attributes reads faces, and recipe.name=style_transfer makes none; remove it")

    def dependencies(self, config: TrainSettings) -> dict[str, str]:
        """Name the perceptual network that supervises, and the one that scores the validation, if there is one."""
        named = {PERCEPTUAL: settings_of(config).perceptual, EVALUATOR: config.validation.evaluator}
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
        if EVALUATOR in loaded and loaded[EVALUATOR].is_same(loaded[PERCEPTUAL]):
            raise ValueError(
                f"{EVALUATOR}={config.validation.evaluator}: is the network that supervises this run ({PERCEPTUAL}), "
                "so its scores are not independent; use another one, such as preset:style-evaluator"
            )

    def collate(self, roles: Sequence[DecodedRows]) -> StylePairs:
        """Pair styles and contents."""
        style, content = roles
        return StylePairs(style.image, content.image)

    def build(
        self, config: StyleTransferConfig, dataset: DatasetInfo, dependencies: Mapping[str, Any]
    ) -> StyleTransferRecipe:
        """Build the network, with the perceptual network; it takes pictures of any size."""
        del dataset
        return StyleTransferRecipe(config, dependencies[PERCEPTUAL].build())

    def describe(self, recipe: StyleTransferRecipe) -> dict[str, Any]:
        """Return the size of the network, from which it is rebuilt."""
        return {"style_network": recipe.config.network.model_dump(mode="json")}

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

    def inference_example(self, recipe: StyleTransferRecipe) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Return the network, and a style and a content."""
        picture = torch.zeros(1, 3, EXAMPLE_SIZE, EXAMPLE_SIZE)
        return find_network(recipe.networks), (picture, picture)

    def load_model(self, checkpoint: str) -> StyleTransferNetwork:
        """Load the EMA network.

        Raises: CheckpointMissing.
        """
        config = StyleNetworkConfig.model_validate(read_info(checkpoint).metadata["style_network"])
        network = StyleTransferNetwork(config)
        load_weights(network, load_tensors(checkpoint, EMA_NETWORK), checkpoint)
        return network.eval().requires_grad_(False)

    def build_scorer(self, evaluator: str, checkpoint: str | None, device: torch.device) -> PictureScorer:
        """Build the scorer of an evaluation.

        Raises: ValueError if the evaluator supervised the model of the checkpoint; CheckpointMissing, InputMissing.
        """
        state = load_perceptual(evaluator)
        if checkpoint is not None:
            supervisor = load_tensors(checkpoint, SUPERVISOR)
            if state.is_same(PerceptualState(state.kind, state.config, supervisor)):
                raise ValueError(
                    f"evaluator={evaluator}: is the network that supervised {checkpoint}, so its scores are not "
                    "independent; use another one, such as preset:style-evaluator"
                )
        return StyleScorer(state.build().to(device), EVALUATED_LAYERS)

    def export(self, checkpoint: str) -> BundleExport:
        """Export the EMA network of a checkpoint.

        Raises: CheckpointMissing.
        """
        return export_network(self.load_model(checkpoint), read_info(checkpoint).config["data"]["size"])

    def export_recipe(self, recipe: StyleTransferRecipe, template: str) -> BundleExport:
        """Export the network of a recipe in memory; pictures have no template."""
        del template
        return export_network(find_network(recipe.networks).eval(), EXAMPLE_SIZE)


def settings_of(config: TrainSettings) -> StyleTransferConfig:
    """Return the style-transfer settings of a configuration."""
    assert isinstance(config.recipe, StyleTransferConfig)
    return config.recipe


register(StyleTransferFamily())
