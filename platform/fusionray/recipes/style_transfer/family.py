"""The family of the style-transfer recipe: pairs of style and content in, a painting network out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fusionray.checkpoint.info import read_info
from fusionray.checkpoint.models import load_weights
from fusionray.checkpoint.reader import load_tensors
from fusionray.nets.style_transfer import StyleNetworkConfig, StyleTransferNetwork
from fusionray.recipes.bundle_export import BundleExport
from fusionray.recipes.family import DatasetInfo
from fusionray.recipes.registry import register
from fusionray.recipes.style_transfer.export import export_network
from fusionray.recipes.style_transfer.pair_family import PERCEPTUAL, PairFamily
from fusionray.recipes.style_transfer.recipe import StyleTransferRecipe, find_network
from fusionray.recipes.style_transfer.settings import StyleTransferConfig

# Names in `state_tensors` of an engine.
EMA_NETWORK = "averages.stylizer.network."
# Side of the pictures of a network in memory, which may have any.
EXAMPLE_SIZE = 256


class StyleTransferFamily(PairFamily[StyleTransferConfig]):
    """Style transfer; see `recipes.style_transfer.recipe`."""

    name = "style_transfer"
    Config = StyleTransferConfig

    def build(
        self, config: StyleTransferConfig, dataset: DatasetInfo, dependencies: Mapping[str, Any]
    ) -> StyleTransferRecipe:
        """Build the network, with the perceptual network; it takes pictures of any size."""
        del dataset
        return StyleTransferRecipe(config, dependencies[PERCEPTUAL].build())

    def describe(self, recipe: StyleTransferRecipe) -> dict[str, Any]:
        """Return the size of the network, from which it is rebuilt."""
        return {"style_network": recipe.config.network.model_dump(mode="json")}

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

    def export(self, checkpoint: str) -> BundleExport:
        """Export the EMA network of a checkpoint.

        Raises: CheckpointMissing.
        """
        return export_network(self.load_model(checkpoint), read_info(checkpoint).config["data"]["size"])

    def export_recipe(self, recipe: StyleTransferRecipe, template: str) -> BundleExport:
        """Export the network of a recipe in memory; pictures have no template."""
        del template
        return export_network(find_network(recipe.networks).eval(), EXAMPLE_SIZE)


register(StyleTransferFamily())
