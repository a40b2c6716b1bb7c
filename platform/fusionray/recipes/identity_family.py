"""The identity recipe as a family: single labelled faces in, an encoder out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fusionray.nets.identity import IDENTITY_SIZE
from fusionray.recipes.arcface_crop import crop_to_arcface_affine
from fusionray.recipes.family import DataFacts, RecipeFamily, TrainSettings
from fusionray.recipes.identity import IdentityRecipe, IdentityRecipeConfig
from fusionray.recipes.registry import register
from fusionray.recipes.single_faces import collate_faces, draw_crops
from fusionray.types import DecodedRows, FaceBatch


class IdentityFamily(RecipeFamily[IdentityRecipeConfig]):
    """Identity encoders; see `recipes.identity`."""

    name = "identity"
    Config = IdentityRecipeConfig
    task = "faces"
    num_roles = 1
    fewest_images = 2  # batch norm has no variance of one image
    counts_people = True

    def collate(self, roles: Sequence[DecodedRows]) -> FaceBatch:
        """Label crops with whose they are."""
        return collate_faces(roles)

    def tell_missing(self, num_rows: int, num_groups: int) -> str:
        """Verification compares pictures of one person with those of others."""
        return "" if num_rows > num_groups > 1 else "at least two people, one of them twice"

    def build(self, config: IdentityRecipeConfig, facts: DataFacts, dependencies: Mapping[str, Any]) -> IdentityRecipe:
        """Build encoder and margin head, sized for the people of the shards."""
        del dependencies
        view = crop_to_arcface_affine(facts.template)
        return IdentityRecipe(config, num_people=facts.num_people, face_view_23=view, synthetic_faces=facts.synthetic)

    def describe(self, recipe: IdentityRecipe) -> dict[str, Any]:
        """Give the config of the encoder, which other recipes take out of the checkpoint."""
        return {"identity_encoder": recipe.config.encoder.model_dump(mode="json")}

    def draw_batch(self, config: TrainSettings, count: int) -> FaceBatch:
        """Draw noise for crops, each of another person."""
        return FaceBatch(draw_crops(config, count)[0], torch.arange(count))

    def trace_inference(self, recipe: IdentityRecipe) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Embed one face."""
        encoder = recipe.networks["classifier"].encoder
        assert isinstance(encoder, nn.Module)
        return encoder, (torch.zeros(1, 3, IDENTITY_SIZE, IDENTITY_SIZE),)


register(IdentityFamily())
