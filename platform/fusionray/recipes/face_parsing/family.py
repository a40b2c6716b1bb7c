"""The family of the face-parsing recipe: single synthetic heads in, a face parser out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fusionray.checkpoint.models import FACE_PARSER, PARTS
from fusionray.data import synthetic
from fusionray.recipes.face_parsing.recipe import FaceParsingConfig, FaceParsingRecipe, RenderedHeads
from fusionray.recipes.family import DatasetInfo, RecipeFamily, TrainSettings
from fusionray.recipes.registry import register
from fusionray.recipes.single_faces import noise_crops
from fusionray.types import DecodedRows


class FaceParsingFamily(RecipeFamily[FaceParsingConfig]):
    """Face parsers; see `recipes.face_parsing.recipe`."""

    name = "face_parsing"
    Config = FaceParsingConfig
    task = "faces"
    num_roles = 1
    fewest_images = 2  # batch norm has no variance of one image

    def check(self, config: TrainSettings) -> None:
        """Check that the network can halve the crops as often as it does.

        Raises: ValueError.
        """
        super().check(config)
        assert isinstance(config.recipe, FaceParsingConfig)
        if config.data.size % (stride := config.recipe.parser.stride):
            raise ValueError(f"data.size={config.data.size} must be a multiple of {stride} for recipe.parser.channels")

    def needs_parameters(self, config: FaceParsingConfig) -> bool:
        """Return True: the parts of photographs are unknown."""
        del config
        return True

    def collate(self, roles: Sequence[DecodedRows]) -> RenderedHeads:
        """Batch crops with what renders their parts."""
        (rows,) = roles
        columns = rows.columns
        view_N23 = columns["view"].reshape(-1, 2, 3)
        return RenderedHeads(rows.image, columns["identity_parameters"], columns["attribute_parameters"], view_N23)

    def build(
        self, config: FaceParsingConfig, dataset: DatasetInfo, dependencies: Mapping[str, Any]
    ) -> FaceParsingRecipe:
        """Build the recipe; it depends on no other network."""
        del dataset, dependencies
        return FaceParsingRecipe(config)

    def describe(self, recipe: FaceParsingRecipe) -> dict[str, Any]:
        """Return the size of the parser and the names of its parts, from which exports rebuild it."""
        return {FACE_PARSER: recipe.config.parser.model_dump(mode="json"), PARTS: list(synthetic.PARTS)}

    def dummy_batch(self, config: TrainSettings, count: int) -> RenderedHeads:
        """Draw noise as crops, of random people of the synthetic world."""
        seed = config.run.seed
        view = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]).repeat(count, 1, 1)
        people, looks = synthetic.sample_identities(count, seed), synthetic.sample_attributes(count, seed)
        return RenderedHeads(noise_crops(config, count)[0], people, looks, view)

    def inference_example(self, recipe: FaceParsingRecipe) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Return the parser and one head."""
        side = 8 * recipe.config.parser.stride
        return recipe.networks["parser"], (torch.zeros(1, 3, side, side),)


register(FaceParsingFamily())
