"""The export of style transfer: one graph that encodes styles, one that paints, and four that paint in tiles.

Shape suffixes: N rows, H rows of pixels, W columns, L style length.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fusionray.bundle.description import GENERATOR_NAME, STYLE_NAME, STYLE_TRANSFER, TensorDescription
from fusionray.nets.pixels import to_float
from fusionray.nets.style_transfer import LARGEST_STATISTIC, STRIDE, StyleTransferNetwork
from fusionray.recipes.bundle_export import BundleExport, GraphExport
from fusionray.recipes.style_transfer.tile_graphs import HALOS, build_tile_graphs, describe_tiles


class StyleGraph(nn.Module):
    """Encode styles."""

    def __init__(self, network: StyleTransferNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, picture: Tensor) -> Tensor:
        """Encode pictures [N,3,H,W] in [-1,1] as [N,L]."""
        return self.network.encode_style(picture)


class PaintGraph(nn.Module):
    """Paint contents in encoded styles."""

    def __init__(self, network: StyleTransferNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, content: Tensor, style: Tensor) -> Tensor:
        """Paint contents [N,3,H,W] in [-1,1] in styles [N,L]."""
        return self.network.paint(content, style)


def export_network(network: StyleTransferNetwork, size: int) -> BundleExport:
    """Return the graphs of a bundle; `size`: the side of the pictures that the network was trained on."""
    encode, paint = StyleGraph(network).eval(), PaintGraph(network).eval()

    def draw_picture(random: np.random.Generator, count: int) -> tuple[Tensor, ...]:
        # Another height and width for each number of rows, so that the gate sees more than the traced size.
        height, width = STRIDE * (7 + 3 * count), STRIDE * (16 - 2 * count)
        return (torch.from_numpy(random.uniform(-1, 1, (count, 3, height, width)).astype(np.float32)),)

    def draw_pair(random: np.random.Generator, count: int) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return *draw_picture(random, count), network.encode_style(*draw_picture(random, count))

    @torch.no_grad()
    def make_inputs(crops: Tensor) -> tuple[Tensor, ...]:
        contents = to_float(crops)
        # The crop at half the length of the set away shows another picture.
        return contents, network.encode_style(contents.roll(len(crops) // 2, 0))

    sides = ("N", 3, "height", "width")
    picture = TensorDescription(meaning="picture", shape=sides, minimum=-1.0, maximum=1.0)
    style = TensorDescription(
        meaning="source",
        shape=("N", network.config.style_length),
        minimum=-LARGEST_STATISTIC,
        maximum=LARGEST_STATISTIC,
    )
    return BundleExport(
        task=STYLE_TRANSFER,
        graphs=(
            GraphExport(
                GENERATOR_NAME, paint, ("content", "style"), ("output",), draw_pair, any_size={"content": STRIDE}
            ),
            GraphExport(STYLE_NAME, encode, ("picture",), ("style",), draw_picture, any_size={"picture": STRIDE}),
            *build_tile_graphs(network),
        ),
        description={
            "size": size,
            "tensors": {
                GENERATOR_NAME: {"content": picture, "style": style, "output": picture},
                STYLE_NAME: {"picture": picture, "style": style},
                **describe_tiles(network, picture, style),
            },
            "halos": HALOS,
        },
        make_inputs=make_inputs,
    )
