"""The family of the AdaIN recipe: pairs of style and content in, a model to compare with out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fusionray.checkpoint.info import read_info
from fusionray.checkpoint.models import load_weights
from fusionray.checkpoint.reader import load_tensors
from fusionray.nets.adain import AdainDecoder, AdainNetwork
from fusionray.nets.picture_encoder import PictureEncoder
from fusionray.recipes.family import DatasetInfo, TrainSettings
from fusionray.recipes.registry import register
from fusionray.recipes.style_transfer.adain_recipe import AdainRecipe
from fusionray.recipes.style_transfer.pair_family import PERCEPTUAL, PairFamily
from fusionray.recipes.style_transfer.perceptual import features_of, load_supervisor
from fusionray.recipes.style_transfer.settings import AdainConfig

EMA_DECODER = "averages.decoder."
# A VGG, and a picture encoder of four stages, have features at an eighth of the resolution.
DEEPEST_STRIDE, MOST_MAPS = 8, 4


class AdainFamily(PairFamily[AdainConfig]):
    """AdaIN; see `recipes.style_transfer.adain_recipe`. Its models are evaluated, and not exported."""

    name = "adain"
    Config = AdainConfig

    def check(self, config: TrainSettings) -> None:
        """Check that the size of the pictures suits the network.

        Raises: ValueError.
        """
        super().check(config)
        if config.data.size % DEEPEST_STRIDE:
            raise ValueError(
                f"data.size={config.data.size} must be a multiple of {DEEPEST_STRIDE} for recipe.name=adain"
            )

    def build(self, config: AdainConfig, dataset: DatasetInfo, dependencies: Mapping[str, Any]) -> AdainRecipe:
        """Build a decoder for the perceptual network.

        Raises: ValueError for a perceptual network with smaller features.
        """
        del dataset
        recipe = AdainRecipe(config, dependencies[PERCEPTUAL].build())
        if recipe.num_maps > MOST_MAPS:
            raise ValueError(
                f"{PERCEPTUAL}={config.perceptual}: has {recipe.num_maps} feature maps, and recipe.name=adain takes "
                f"{MOST_MAPS} at most"
            )
        return recipe

    def describe(self, recipe: AdainRecipe) -> dict[str, Any]:
        """Return the kind and size of the perceptual network, from which both networks are rebuilt."""
        encoder = recipe.frozen["perceptual"]
        kind, size = "vgg", {}
        if isinstance(encoder, PictureEncoder):
            kind, size = "encoder", encoder.config.model_dump(mode="json")
        return {"adain": {"channels": recipe.channels, "kind": kind, "encoder": size}}

    def inference_example(self, recipe: AdainRecipe) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Return the model, and a style and a content."""
        picture = torch.zeros(1, 3, 64, 64)
        return recipe.build_model(recipe.networks), (picture, picture)

    def load_model(self, checkpoint: str) -> AdainNetwork:
        """Load the EMA decoder, and the perceptual network.

        Raises: CheckpointMissing.
        """
        described = read_info(checkpoint).metadata["adain"]
        kind: Literal["encoder", "vgg"] = described["kind"]
        encoder = load_supervisor(checkpoint, kind, described["encoder"]).build()
        decoder = AdainDecoder(described["channels"])
        load_weights(decoder, load_tensors(checkpoint, EMA_DECODER), checkpoint)
        model = AdainNetwork(encoder, decoder, lambda picture: features_of(encoder, picture))
        return model.eval().requires_grad_(False)


register(AdainFamily())
