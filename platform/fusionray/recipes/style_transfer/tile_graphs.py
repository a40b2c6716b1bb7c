"""The graphs that paint a picture of any size in tiles: the network cut where it looks at the whole picture.

Shape suffixes: N rows, C channels, H rows of pixels, W columns, L style length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fusionray.bundle.description import (
    TILE_CONTENT_NAME,
    TILE_FULL_NAME,
    TILE_HALF_NAME,
    TILE_STYLE_NAME,
    TensorDescription,
)
from fusionray.nets.style_transfer import (
    CONTENT_PIXELS,
    HALF_PIXELS,
    LARGEST_STATISTIC,
    RECEPTIVE_PIXELS,
    STRIDE,
    Statistics,
    StyleTransferNetwork,
)
from fusionray.recipes.bundle_export import GraphExport

HALOS = {
    TILE_STYLE_NAME: CONTENT_PIXELS,
    TILE_CONTENT_NAME: CONTENT_PIXELS,
    TILE_HALF_NAME: HALF_PIXELS,
    TILE_FULL_NAME: RECEPTIVE_PIXELS,
}


class TileStyle(nn.Module):
    """Encode pictures [N,3,H,W] as the features whose statistics are their style, at a quarter and at half."""

    def __init__(self, network: StyleTransferNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, picture: Tensor) -> tuple[Tensor, Tensor]:
        half, quarter = self.network.style(picture)
        return quarter, half


class TileContent(nn.Module):
    """Encode contents [N,3,H,W] as features [N,C,H/4,W/4]."""

    def __init__(self, network: StyleTransferNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, content: Tensor) -> Tensor:
        return self.network.encode_content(content)


class TileHalf(nn.Module):
    """Paint contents up to half of the resolution, [N,C,H/2,W/2]; `quarter`: statistics [N,2C] of `TileContent`."""

    def __init__(self, network: StyleTransferNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, content: Tensor, style: Tensor, quarter: Tensor) -> Tensor:
        features = self.network.encode_content(content)
        return self.network.painter.paint_half(features, split(quarter), style)


class TileFull(nn.Module):
    """Paint contents; `half`: statistics [N,2C] of `TileHalf`."""

    def __init__(self, network: StyleTransferNetwork) -> None:
        super().__init__()
        self.front = TileHalf(network)

    def forward(self, content: Tensor, style: Tensor, quarter: Tensor, half: Tensor) -> Tensor:
        features = self.front(content, style, quarter)
        return self.front.network.painter.paint_full(features, split(half), style)


def split(statistics_N2C: Tensor) -> Statistics:
    """Split means and deviations, one after the other, into both."""
    mean, deviation = statistics_N2C[:, :, None, None].chunk(2, dim=1)
    return Statistics(mean, deviation)


def build_tile_graphs(network: StyleTransferNetwork) -> tuple[GraphExport, ...]:
    """Return the graphs, in the order of the passes over a picture."""
    quarter, half = network.config.quarter_channels, network.config.half_channels

    def draw(random: np.random.Generator, count: int, channels: tuple[int, ...] = ()) -> tuple[Tensor, ...]:
        def uniform(low: float, high: float, *shape: int) -> Tensor:
            return torch.from_numpy(random.uniform(low, high, (count, *shape)).astype(np.float32))

        picture = uniform(-1, 1, 3, STRIDE * (7 + 3 * count), STRIDE * (16 - 2 * count))
        if not channels:
            return (picture,)
        with torch.no_grad():
            style = network.encode_style(picture)
        # Deviations are positive: features are divided by them.
        moments = (torch.cat([uniform(-1, 1, width), uniform(0.5, 2, width)], dim=1) for width in channels)
        return picture, style, *moments

    def graph(
        file: str, module: nn.Module, inputs: tuple[str, ...], outputs: tuple[str, ...], *wide: int
    ) -> GraphExport:
        return GraphExport(
            file,
            module.eval(),
            inputs,
            outputs,
            lambda random, count: draw(random, count, wide),
            any_size={inputs[0]: STRIDE},
        )

    return (
        graph(TILE_STYLE_NAME, TileStyle(network), ("picture",), ("quarter", "half")),
        graph(TILE_CONTENT_NAME, TileContent(network), ("content",), ("quarter",)),
        graph(TILE_HALF_NAME, TileHalf(network), ("content", "style", "quarter"), ("half",), quarter),
        graph(TILE_FULL_NAME, TileFull(network), ("content", "style", "quarter", "half"), ("output",), quarter, half),
    )


def describe_tiles(
    network: StyleTransferNetwork, picture: TensorDescription, style: TensorDescription
) -> dict[str, dict[str, TensorDescription]]:
    """Describe the inputs and outputs of the graphs."""
    quarter, half = network.config.quarter_channels, network.config.half_channels

    def features(*shape: Any) -> TensorDescription:
        return TensorDescription(
            meaning="features", shape=("N", *shape), minimum=-LARGEST_STATISTIC, maximum=LARGEST_STATISTIC
        )

    sides = ("height", "width")
    return {
        TILE_STYLE_NAME: {"picture": picture, "quarter": features(quarter, *sides), "half": features(half, *sides)},
        TILE_CONTENT_NAME: {"content": picture, "quarter": features(quarter, *sides)},
        TILE_HALF_NAME: {
            "content": picture,
            "style": style,
            "quarter": features(2 * quarter),
            "half": features(half, *sides),
        },
        TILE_FULL_NAME: {
            "content": picture,
            "style": style,
            "quarter": features(2 * quarter),
            "half": features(2 * half),
            "output": picture,
        },
    }
