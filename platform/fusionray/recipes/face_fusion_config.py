"""The settings of the face-fusion recipe."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from fusionray.config import Section
from fusionray.nets.discriminator import DiscriminatorConfig
from fusionray.nets.generator import GeneratorConfig
from fusionray.recipes.adaptive_augmentation import AdaptiveAugmentationConfig
from fusionray.recipes.augmentation import AugmentationConfig
from fusionray.recipes.family import RecipeConfig
from fusionray.recipes.identity_perturbation import IdentityPerturbationConfig
from fusionray.recipes.recipe import OptimizerConfig


class FusionLossWeights(Section):
    """Weight of each loss; 0 leaves it out and saves its computation."""

    adversarial: float = Field(1.0, ge=0, description="fused pictures look real to the discriminator")
    identity: float = Field(2.0, ge=0, description="1 - cosine between fused and source embedding")
    reconstruction: float = Field(20.0, ge=0, description="L1 to the target where source and target are one person")
    truth: float = Field(20.0, ge=0, description="L1 to the rendered true fusion (paired only)")
    structure: float = Field(
        0.0, ge=0, description="1 - SSIM to what `truth` or `reconstruction` wants, within the face region"
    )
    feature_matching: float = Field(2.0, ge=0, description="deep discriminator features equal the reference's")
    cycle: float = Field(0.0, ge=0, description="fusing the target's identity back returns the target")
    mask: float = Field(
        1.0, ge=0, description="cross-entropy of mask and face region; keeps the mask from collapsing to 0"
    )
    gradient_penalty: float = Field(1.0, ge=0, description="R1 on real pictures")


class FaceFusionConfig(RecipeConfig):
    """Settings of the face-fusion recipe."""

    name: Literal["face_fusion"] = "face_fusion"
    generator: GeneratorConfig = GeneratorConfig()
    discriminator: DiscriminatorConfig = DiscriminatorConfig()
    weights: FusionLossWeights = FusionLossWeights()
    paired: bool = Field(True, description="learn from the rendered true fusion where the shards are synthetic")
    disguise: IdentityPerturbationConfig | None = Field(
        None, description="unpaired: hide who same-person targets show, and ask for the picture back; null: show them"
    )
    matching_from_layer: int = Field(1, ge=0, description="first discriminator layer used by feature matching")
    gradient_penalty_interval: int = Field(16, ge=1, description="steps between two gradient penalties")
    identity_encoder: str = Field(
        "preset:identity-small",
        description="frozen encoder: a checkpoint or run folder, or preset:NAME to train it first on these shards",
    )
    augmentation: AugmentationConfig = AugmentationConfig()
    adaptive_augmentation: AdaptiveAugmentationConfig = AdaptiveAugmentationConfig()
    generator_optimizer: OptimizerConfig = OptimizerConfig(base_lr=2e-4)
    discriminator_optimizer: OptimizerConfig = OptimizerConfig(base_lr=4e-4)

    @model_validator(mode="after")
    def check_matching(self) -> FaceFusionConfig:
        """Refuse feature matching without features."""
        num_layers = len(self.discriminator.channels)
        if self.weights.feature_matching and self.matching_from_layer >= num_layers:
            raise ValueError(
                f"matching_from_layer={self.matching_from_layer} leaves none of the {num_layers} layers of "
                "discriminator.channels to feature matching"
            )
        return self
