"""The settings of the recipes on pairs of style and content."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fusionray.config import Section, in_unit
from fusionray.nets.style_transfer import StyleNetworkConfig
from fusionray.recipes.augmentation import AugmentationConfig
from fusionray.recipes.family import RecipeConfig
from fusionray.recipes.recipe import OptimizerConfig


class StyleLossWeights(Section):
    """Weights of the losses; 0 turns one off."""

    content: float = Field(
        1.0, ge=0, description="Distance of output and content in deep features.", json_schema_extra=in_unit("")
    )
    style: float = Field(
        10.0,
        ge=0,
        description="Distance of output and style in the statistics of features; low values give colours without "
        "texture.",
        json_schema_extra=in_unit(""),
    )
    structure: float = Field(
        1.0,
        ge=0,
        description="Weight of 1 - SSIM of output and content, without its luminance term.",
        json_schema_extra=in_unit(""),
    )
    contrast: float = Field(
        0.3,
        ge=0,
        description="Distance of the output's encoded style to its own style, relative to that of other styles.",
        json_schema_extra=in_unit(""),
    )
    identity: float = Field(
        5.0,
        ge=0,
        description="L1 between a content and itself, painted in its own style: what strength 0 returns.",
        json_schema_extra=in_unit(""),
    )


class PairRecipeConfig(RecipeConfig):
    """Settings that all these recipes have."""

    perceptual: str = Field(
        "preset:style-encoder",
        description="Network whose features the losses compare: a checkpoint or run folder of a picture encoder, "
        "preset:NAME to train it first on these shards, or a .safetensors or .onnx file of a VGG.",
    )
    augmentation: AugmentationConfig = AugmentationConfig()
    optimizer: OptimizerConfig = OptimizerConfig(kind="adamw", base_lr=2e-3, betas=(0.9, 0.99))


class AdainConfig(PairRecipeConfig):
    """AdaIN recipe: the usual baseline of style transfer, to compare with; it is not exported."""

    name: Literal["adain"] = Field("adain", description="Selects the AdaIN recipe.")
    style_weight: float = Field(
        10.0,
        ge=0,
        description="Weight of the style loss beside the content loss, which is the distance to the adapted features.",
        json_schema_extra=in_unit(""),
    )


class StyleTransferConfig(PairRecipeConfig):
    """Style-transfer recipe: a content picture in the style of another picture."""

    name: Literal["style_transfer"] = Field("style_transfer", description="Selects the style-transfer recipe.")
    network: StyleNetworkConfig = StyleNetworkConfig()
    content_layers: tuple[int, ...] = Field(
        (2, 3), min_length=1, description="Feature maps that the content loss compares; 0 is the finest."
    )
    weights: StyleLossWeights = StyleLossWeights()
    identity_share: float = Field(
        0.25,
        ge=0,
        le=1,
        description="Share of the contents that are also painted in their own style.",
        json_schema_extra=in_unit("share"),
    )
