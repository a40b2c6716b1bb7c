"""The attributes recipe as a family: single synthetic faces in, a reader of pose, expression and light out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fusionray.data import synthetic
from fusionray.nets.identity import IDENTITY_SIZE
from fusionray.recipes.arcface_crop import crop_to_arcface_affine
from fusionray.recipes.attributes import AttributesRecipe, AttributesRecipeConfig
from fusionray.recipes.family import DataFacts, RecipeFamily, TrainSettings
from fusionray.recipes.registry import register
from fusionray.recipes.single_faces import collate_faces, draw_crops
from fusionray.types import DecodedRows, FaceBatch


class AttributesFamily(RecipeFamily[AttributesRecipeConfig]):
    """Attribute readers; see `recipes.attributes`."""

    name = "attributes"
    Config = AttributesRecipeConfig
    task = "faces"
    num_roles = 1
    fewest_images = 2  # batch norm has no variance of one image

    def needs_parameters(self, config: AttributesRecipeConfig) -> bool:
        """It learns what the renderer drew, which nobody has measured in photographs."""
        del config
        return True

    def collate(self, roles: Sequence[DecodedRows]) -> FaceBatch:
        """Put crops together with the attributes that they show."""
        return collate_faces(roles)

    def build(
        self, config: AttributesRecipeConfig, facts: DataFacts, dependencies: Mapping[str, Any]
    ) -> AttributesRecipe:
        """Build the reader."""
        del dependencies
        return AttributesRecipe(config, face_view_23=crop_to_arcface_affine(facts.template))

    def describe(self, recipe: AttributesRecipe) -> dict[str, Any]:
        """Give the config of the reader, which evaluations take out of the checkpoint."""
        return {"attribute_reader": recipe.reader_config.model_dump(mode="json")}

    def draw_batch(self, config: TrainSettings, count: int) -> FaceBatch:
        """Draw noise for crops, and attributes of the synthetic world."""
        attributes = synthetic.sample_attributes(count, config.run.seed)
        return FaceBatch(draw_crops(config, count)[0], torch.arange(count), attributes=attributes)

    def trace_inference(self, recipe: AttributesRecipe) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Read one face."""
        return recipe.networks["reader"], (torch.zeros(1, 3, IDENTITY_SIZE, IDENTITY_SIZE),)


register(AttributesFamily())
