"""The settings of the face-fusion recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fusionray.config import Section, in_unit
from fusionray.nets.discriminator import DiscriminatorConfig
from fusionray.nets.generator import GeneratorConfig
from fusionray.recipes.adaptive_augmentation import AdaptiveAugmentationConfig
from fusionray.recipes.augmentation import AugmentationConfig
from fusionray.recipes.face_fusion.identity_perturbation import IdentityPerturbationConfig
from fusionray.recipes.family import RecipeConfig
from fusionray.recipes.recipe import OptimizerConfig

Weight = Annotated[float, Field(ge=0, json_schema_extra=in_unit(""))]


class FusionLossWeights(Section):
    """Weight of each loss; 0 skips the loss and its computation."""

    adversarial: Weight = Field(1.0, description="Adversarial loss: fused pictures look real to the discriminator.")
    identity: Weight = Field(
        2.0, description="Identity loss: 1 - cosine similarity of the fused and the source embedding."
    )
    reconstruction: Weight = Field(
        20.0, description="Reconstruction loss: L1 to the target where source and target show the same person."
    )
    truth: Weight = Field(20.0, description="Paired training only: L1 to the rendered true fusion.")
    structure: Weight = Field(
        0.0,
        description="Structure loss: 1 - SSIM to the reference of `truth` or `reconstruction`, within the face region.",
    )
    feature_matching: Weight = Field(
        2.0,
        description="Feature matching: L1 between deep discriminator features of the fused and the reference picture.",
    )
    cycle: Weight = Field(0.0, description="Cycle loss: fusing the target's identity back returns the target.")
    mask: Weight = Field(
        1.0, description="Mask loss: cross-entropy of mask and face region; keeps the mask from collapsing to 0."
    )
    gradient_penalty: Weight = Field(
        0.05, description="R1 gradient penalty on real pictures: gamma, as published for one logit a picture."
    )


class FaceFusionConfig(RecipeConfig):
    """Face-fusion recipe: a generator, a discriminator and their losses."""

    name: Literal["face_fusion"] = Field("face_fusion", description="Selects the face-fusion recipe.")
    generator: GeneratorConfig = GeneratorConfig()
    discriminator: DiscriminatorConfig = DiscriminatorConfig()
    weights: FusionLossWeights = FusionLossWeights()
    paired: bool = Field(True, description="Train on the rendered true fusion if the shards are synthetic.")
    identity_perturbation: IdentityPerturbationConfig | None = Field(
        None,
        description="Unpaired training: hide the identity of same-person targets and train to restore the picture; "
        "null: leave targets as they are.",
    )
    matching_from_layer: int = Field(
        1,
        ge=0,
        description="First discriminator layer that feature matching uses, counted from 0.",
        json_schema_extra=in_unit(""),
    )
    gradient_penalty_interval: int = Field(
        16, ge=1, description="Steps between two gradient penalties.", json_schema_extra=in_unit("steps")
    )
    identity_encoder: str = Field(
        "preset:identity-small",
        description="Frozen identity encoder that supervises the run: a checkpoint or run folder, or preset:NAME to "
        "train it first on these shards.",
    )
    augmentation: AugmentationConfig = AugmentationConfig()
    adaptive_augmentation: AdaptiveAugmentationConfig = AdaptiveAugmentationConfig()
    generator_optimizer: OptimizerConfig = OptimizerConfig(base_lr=2e-4)
    discriminator_optimizer: OptimizerConfig = OptimizerConfig(base_lr=4e-4)

    @model_validator(mode="after")
    def check_matching(self) -> FaceFusionConfig:
        """Check that feature matching has at least one layer.

        Raises: ValueError.
        """
        num_layers = len(self.discriminator.channels)
        if self.weights.feature_matching and self.matching_from_layer >= num_layers:
            raise ValueError(
                f"matching_from_layer={self.matching_from_layer} leaves none of the {num_layers} layers of "
                "discriminator.channels to feature matching"
            )
        return self
