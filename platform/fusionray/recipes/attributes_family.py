"""The family of the attributes recipe: single synthetic faces in, an attribute reader out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fusionray.data import synthetic
from fusionray.nets.identity import IDENTITY_SIZE
from fusionray.recipes.arcface_crop import crop_to_arcface_affine
from fusionray.recipes.attributes import AttributesRecipe, AttributesRecipeConfig
from fusionray.recipes.family import DatasetInfo, RecipeFamily, TrainSettings
from fusionray.recipes.registry import register
from fusionray.recipes.single_faces import collate_faces, noise_crops
from fusionray.types import DecodedRows, FaceBatch


class AttributesFamily(RecipeFamily[AttributesRecipeConfig]):
    """Attribute readers; see `recipes.attributes`."""

    name = "attributes"
    Config = AttributesRecipeConfig
    task = "faces"
    num_roles = 1
    fewest_images = 2  # batch norm has no variance of one image

    def needs_parameters(self, config: AttributesRecipeConfig) -> bool:
        """Return True: the attributes of photographs are unknown."""
        del config
        return True

    def collate(self, roles: Sequence[DecodedRows]) -> FaceBatch:
        """Batch crops with their attributes."""
        return collate_faces(roles)

    def build(
        self, config: AttributesRecipeConfig, dataset: DatasetInfo, dependencies: Mapping[str, Any]
    ) -> AttributesRecipe:
        """Build the recipe; it depends on no other network."""
        del dependencies
        return AttributesRecipe(config, face_view_23=crop_to_arcface_affine(dataset.template))

    def describe(self, recipe: AttributesRecipe) -> dict[str, Any]:
        """Return the config of the reader, from which evaluations rebuild it."""
        return {"attribute_reader": recipe.reader_config.model_dump(mode="json")}

    def dummy_batch(self, config: TrainSettings, count: int) -> FaceBatch:
        """Draw noise as crops, and random attributes of the synthetic world."""
        attributes = synthetic.sample_attributes(count, config.run.seed)
        return FaceBatch(noise_crops(config, count)[0], torch.arange(count), attributes=attributes)

    def inference_example(self, recipe: AttributesRecipe) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Return the reader and one face."""
        return recipe.networks["reader"], (torch.zeros(1, 3, IDENTITY_SIZE, IDENTITY_SIZE),)


register(AttributesFamily())
