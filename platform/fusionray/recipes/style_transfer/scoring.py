"""How well a picture was stylized: structure and content kept, style taken; beside ways that need no network.

Shape suffixes: N pictures, H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fusionray.metrics.similarity import region_ssim
from fusionray.nets.style_transfer import measure_statistics, replace_statistics
from fusionray.recipes.style_transfer.losses import content_loss, luminance, style_loss
from fusionray.recipes.style_transfer.perceptual import features_of

# As in evaluation/pictures.yaml. Both goals must hold at once: an unchanged content has the best structure, and
# the style picture itself the best style.
METRIC_TABLE: Mapping[str, Any] = {
    "themes": {
        "content": "Is it still the content?",
        "style": "Is it painted in the style? The evaluator did not supervise the model.",
        "extent": "The size of the evaluation.",
    },
    "metrics": {
        "content_ssim": {
            "theme": "content",
            "unit": "SSIM",
            "description": "structural similarity of output and content in their luminance",
            "paired": {"at_least": 0.5},
            "unpaired": {"at_least": 0.5},
        },
        "content_ssim_style": {
            "theme": "content",
            "unit": "SSIM",
            "description": "the same for the style picture, unchanged",
        },
        "content_ssim_colours": {
            "theme": "content",
            "unit": "SSIM",
            "description": "the same for the content in the colours of the style (AdaIN of the pixels)",
        },
        "content_ssim_baseline": {
            "theme": "content",
            "unit": "SSIM",
            "description": "the same for the output of the model that the setting `baseline` names",
        },
        "content_loss": {
            "theme": "content",
            "unit": "distance",
            "description": "distance of output and content in the evaluator's standardised features; 1: unrelated",
            "paired": {"at_most": 0.8},
            "unpaired": {"at_most": 0.8},
        },
        "content_loss_style": {
            "theme": "content",
            "unit": "distance",
            "description": "the same for the style picture, unchanged",
        },
        "content_loss_baseline": {
            "theme": "content",
            "unit": "distance",
            "description": "the same for the output of the model that the setting `baseline` names",
        },
        "style_loss": {
            "theme": "style",
            "unit": "distance",
            "description": "distance of output and style in the statistics of the evaluator's features",
        },
        "style_loss_content": {
            "theme": "style",
            "unit": "distance",
            "description": "the same for the content, unchanged",
        },
        "style_loss_colours": {
            "theme": "style",
            "unit": "distance",
            "description": "the same for the content in the colours of the style (AdaIN of the pixels)",
        },
        "style_loss_baseline": {
            "theme": "style",
            "unit": "distance",
            "description": "the same for the output of the model that the setting `baseline` names",
        },
        "style_loss_ratio": {
            "theme": "style",
            "unit": "ratio",
            "description": "style_loss over style_loss_content",
            "paired": {"at_most": 0.5},
            "unpaired": {"at_most": 0.5},
        },
        "held_out_draws": {
            "theme": "extent",
            "unit": "draws",
            "description": "held-out pairs of style and content that were measured",
        },
    },
}


class StyleScorer:
    """Scores outputs by the features of a perceptual network; a `PictureScorer`.

    `content_layers`: feature maps that the content loss compares, 0 is the finest.
    """

    ratios: ClassVar[Mapping[str, tuple[str, str]]] = {"style_loss_ratio": ("style_loss", "style_loss_content")}
    ranking_name: ClassVar[str] = "style loss of the content over that of the output (style_loss_content / style_loss)"
    roles: ClassVar[tuple[str, ...]] = ("style", "content")

    def __init__(self, perceptual: nn.Module, content_layers: Sequence[int]) -> None:
        self.perceptual = perceptual
        self.content_layers = content_layers

    @torch.no_grad()
    def score(self, output: Tensor, pictures: Sequence[Tensor]) -> dict[str, Tensor]:
        """Score outputs for (style, content), all [N,3,H,W] in [-1,1]: float32 [N] by name.

        Suffix `_style`: the same for the style picture as output; `_content`: for the content as output; `_colours`:
        for the content with the mean and deviation of the style's colours.
        """
        style, content = pictures
        recoloured = replace_statistics(content, measure_statistics(content), measure_statistics(style)).clamp(-1, 1)
        output_maps, style_maps, content_maps, recoloured_maps = (
            features_of(self.perceptual, picture) for picture in (output, style, content, recoloured)
        )
        return {
            "content_ssim": ssim(output, content),
            "content_ssim_style": ssim(style, content),
            "content_ssim_colours": ssim(recoloured, content),
            "content_loss": content_loss(self.pick(output_maps), self.pick(content_maps)),
            "content_loss_style": content_loss(self.pick(style_maps), self.pick(content_maps)),
            "style_loss": style_loss(output_maps, style_maps),
            "style_loss_content": style_loss(content_maps, style_maps),
            "style_loss_colours": style_loss(recoloured_maps, style_maps),
        }

    def rank(self, scores: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
        """Return the gain in style [N]."""
        return (scores["style_loss_content"] / np.maximum(scores["style_loss"], 1e-6)).astype(np.float32)

    def reference(self, pictures: Sequence[Tensor]) -> None:
        """Return None: no picture is the right one."""
        del pictures

    def pick(self, maps: list[Tensor]) -> list[Tensor]:
        """Return the feature maps that the content loss compares."""
        return [maps[layer] for layer in self.content_layers]


def ssim(first_N3HW: Tensor, second_N3HW: Tensor) -> Tensor:
    """Return the SSIM of the luminance of pictures in [-1,1], [N]: a style changes colours, and may."""
    first, second = (luminance(picture) * 2 - 1 for picture in (first_N3HW, second_N3HW))
    return region_ssim(first, second, torch.ones_like(first))
