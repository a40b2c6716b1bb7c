"""The family of the identity recipe: single labelled faces in, an identity encoder out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fusionray.nets.identity import IDENTITY_SIZE
from fusionray.recipes.arcface_crop import crop_to_arcface_affine
from fusionray.recipes.family import DatasetInfo, RecipeFamily, TrainSettings
from fusionray.recipes.identity import IdentityRecipe, IdentityRecipeConfig
from fusionray.recipes.registry import register
from fusionray.recipes.single_faces import collate_faces, noise_crops
from fusionray.types import DecodedRows, FaceBatch


class IdentityFamily(RecipeFamily[IdentityRecipeConfig]):
    """Identity encoders; see `recipes.identity`."""

    name = "identity"
    Config = IdentityRecipeConfig
    task = "faces"
    num_roles = 1
    fewest_images = 2  # batch norm has no variance of one image
    sized_by_people = True

    def collate(self, roles: Sequence[DecodedRows]) -> FaceBatch:
        """Batch crops with the labels of their people."""
        return collate_faces(roles)

    def describe_shortage(self, num_rows: int, num_groups: int) -> str:
        """Require two people and two pictures of one of them, which face verification needs."""
        return "" if num_rows > num_groups > 1 else "at least two people, one of them twice"

    def build(
        self, config: IdentityRecipeConfig, dataset: DatasetInfo, dependencies: Mapping[str, Any]
    ) -> IdentityRecipe:
        """Build the recipe; its margin head has one class for each person of the training split."""
        del dependencies
        view = crop_to_arcface_affine(dataset.template)
        return IdentityRecipe(
            config, num_people=dataset.num_people, face_view_23=view, synthetic_faces=dataset.synthetic
        )

    def describe(self, recipe: IdentityRecipe) -> dict[str, Any]:
        """Return the config of the encoder, from which other recipes rebuild it."""
        return {"identity_encoder": recipe.config.encoder.model_dump(mode="json")}

    def dummy_batch(self, config: TrainSettings, count: int) -> FaceBatch:
        """Draw noise as crops, each with a label of its own."""
        return FaceBatch(noise_crops(config, count)[0], torch.arange(count))

    def inference_example(self, recipe: IdentityRecipe) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Return the encoder and one face."""
        encoder = recipe.networks["classifier"].encoder
        assert isinstance(encoder, nn.Module)
        return encoder, (torch.zeros(1, 3, IDENTITY_SIZE, IDENTITY_SIZE),)


register(IdentityFamily())
