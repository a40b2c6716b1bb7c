"""The family of the picture-encoder recipe: single pictures in, a perceptual network out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fusionray.recipes.family import DatasetInfo, RecipeFamily, TrainSettings
from fusionray.recipes.registry import register
from fusionray.recipes.single_faces import noise_crops
from fusionray.recipes.style_transfer.encoder_recipe import PictureEncoderRecipe, PictureEncoderRecipeConfig, Pictures
from fusionray.types import DecodedRows


class PictureEncoderFamily(RecipeFamily[PictureEncoderRecipeConfig]):
    """Perceptual networks; see `recipes.style_transfer.encoder_recipe`."""

    name = "picture_encoder"
    Config = PictureEncoderRecipeConfig
    task = "pictures"
    num_roles = 1
    fewest_images = 2  # a single picture has nothing to be told apart from

    def collate(self, roles: Sequence[DecodedRows]) -> Pictures:
        """Batch the pictures."""
        (rows,) = roles
        return Pictures(rows.image)

    def build(
        self, config: PictureEncoderRecipeConfig, dataset: DatasetInfo, dependencies: Mapping[str, Any]
    ) -> PictureEncoderRecipe:
        """Build the recipe; it takes pictures of any size and depends on no other network."""
        del dataset, dependencies
        return PictureEncoderRecipe(config)

    def describe(self, recipe: PictureEncoderRecipe) -> dict[str, Any]:
        """Return the size of the encoder, from which other recipes rebuild it."""
        return {"picture_encoder": recipe.config.encoder.model_dump(mode="json")}

    def dummy_batch(self, config: TrainSettings, count: int) -> Pictures:
        """Draw noise as pictures."""
        return Pictures(noise_crops(config, count)[0])

    def inference_example(self, recipe: PictureEncoderRecipe) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Return the encoder and one view."""
        side = recipe.config.view
        return recipe.networks["encoder"], (torch.zeros(1, 3, side, side),)


register(PictureEncoderFamily())
