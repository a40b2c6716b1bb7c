"""Identity recipe: train an identity encoder with ArcFace.

Shape suffixes: N batch, C channels, H rows, W columns, E embedding length, K people.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fusionray.config import in_unit
from fusionray.data import synthetic
from fusionray.metrics.attribute_reader import ParameterScaler
from fusionray.metrics.verification import verify
from fusionray.nets.generator import EMBEDDING_LENGTH
from fusionray.nets.identity import IdentityEncoder, IdentityEncoderConfig
from fusionray.recipes.arcface_crop import ArcFaceCrop
from fusionray.recipes.augmentation import AugmentationConfig
from fusionray.recipes.family import RecipeConfig
from fusionray.recipes.losses import ArcFaceHead
from fusionray.recipes.recipe import Losses, OptimizerConfig, Phase, PhaseInput
from fusionray.recipes.single_faces import FacePreparation, SingleFaceRecipe
from fusionray.types import Batch, FaceBatch


class IdentityRecipeConfig(RecipeConfig):
    """Identity recipe: a face-recognition encoder trained with ArcFace."""

    name: Literal["identity"] = Field("identity", description="Selects the identity recipe.")
    encoder: IdentityEncoderConfig = IdentityEncoderConfig()
    scale: float = Field(
        32.0, gt=0, description="Radius s of the hypersphere of the logits.", json_schema_extra=in_unit("")
    )
    margin: float = Field(0.4, ge=0, description="Additive angular margin m.", json_schema_extra=in_unit("radians"))
    min_resolution: float = Field(
        0.4, gt=0, le=1, description="Strongest random loss of resolution; 1: none.", json_schema_extra=in_unit("share")
    )
    traits_weight: float = Field(
        0.0,
        ge=0,
        description="Weight of predicting a synthetic person's parameters from the embedding; photographs have none.",
        json_schema_extra=in_unit(""),
    )
    augmentation: AugmentationConfig = AugmentationConfig()
    optimizer: OptimizerConfig = OptimizerConfig(kind="adamw", base_lr=5e-4, betas=(0.9, 0.99), weight_decay=0.05)


@dataclass(frozen=True)
class LabelledFaces(Batch):
    """Prepared batch: `face` [N,3,112,112] in [-1,1], `label` int64 [N], `traits` [N,P] standardised, or None."""

    face: Tensor
    label: Tensor
    traits: Tensor | None


class IdentityClassifier(nn.Module):
    """The encoder with its training heads, as one network; only `encoder` is used after training."""

    def __init__(self, config: IdentityRecipeConfig, num_people: int, num_traits: int) -> None:
        super().__init__()
        self.encoder = IdentityEncoder(config.encoder)
        self.head = ArcFaceHead(num_people, EMBEDDING_LENGTH, config.scale, config.margin)
        self.traits = nn.Linear(EMBEDDING_LENGTH, num_traits) if num_traits else None

    def forward(self, face: Tensor, label: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return margin logits [N,K] and, with a traits head, standardised parameters [N,P]."""
        embedding_NE = self.encoder(face)
        traits_NP = None if self.traits is None else self.traits(embedding_NE * math.sqrt(EMBEDDING_LENGTH))
        return self.head(embedding_NE, label), traits_NP


class IdentityRecipe(SingleFaceRecipe):
    """Train the encoder to classify the people of the training split.

    With few people and minutes of training, the margin loss alone teaches little. For synthetic people the encoder is
    also trained to predict the person's true parameters (traits) from the embedding.
    """

    ema_names = frozenset({"classifier"})

    def __init__(
        self, config: IdentityRecipeConfig, *, num_people: int, face_view_23: Tensor, synthetic_faces: bool = False
    ) -> None:
        self.config = config
        with_traits = synthetic_faces and config.traits_weight > 0
        self.standard = ParameterScaler.fit(synthetic.sample_identities(1024, seed=0)) if with_traits else None
        num_traits = len(synthetic.IDENTITY_NAMES) if with_traits else 0
        self.networks: Mapping[str, nn.Module] = {"classifier": IdentityClassifier(config, num_people, num_traits)}
        self.faces = FacePreparation(ArcFaceCrop(face_view_23), config.augmentation, config.min_resolution)
        self.frozen: Mapping[str, nn.Module] = {
            "faces": self.faces,
            **({"standard": self.standard} if self.standard is not None else {}),
        }
        self.adaptive: Mapping[str, nn.Module] = {}
        self.optimizers = {"classifier": config.optimizer}
        self.phases = (Phase("classify", "classifier", self.classify),)

    def prepare(self, batch: FaceBatch) -> LabelledFaces:
        """Augment and crop the faces, and standardise the traits."""
        traits = None
        if self.standard is not None and batch.traits is not None:
            traits = self.standard(batch.traits)
        return LabelledFaces(self.faces(batch.image), batch.label, traits)

    def classify(self, step: PhaseInput[LabelledFaces]) -> Losses:
        """Cross-entropy of the margin logits, plus smooth L1 of the predicted traits if they are known."""
        batch = step.batch
        logits_NK, traits_NP = step.networks["classifier"](batch.face, batch.label)
        loss = F.cross_entropy(logits_NK, batch.label)
        correct = (logits_NK.detach().argmax(dim=1) == batch.label).float().mean()
        parts = {"classification": loss, "classification_accuracy": correct}
        if traits_NP is not None and batch.traits is not None:
            parts["traits"] = F.smooth_l1_loss(traits_NP.float(), batch.traits)
            loss = loss + self.config.traits_weight * parts["traits"]
        return Losses(loss, parts)

    @torch.no_grad()
    def measure(self, networks: Mapping[str, nn.Module], batch: FaceBatch) -> dict[str, Tensor]:
        """Embed held-out faces: `embedding` [N,E], `label` [N]."""
        encoder = networks["classifier"].encoder
        assert isinstance(encoder, IdentityEncoder)
        return {"embedding": encoder(self.faces.crop(batch.image)), "label": batch.label}

    def summarise(self, columns: Mapping[str, Tensor]) -> dict[str, float]:
        """Return face verification metrics: accuracy, area under the ROC curve, TAR at FAR 0.01."""
        if not columns:
            return {}
        result = verify(columns["embedding"].numpy(), columns["label"].numpy())
        return {
            "verification_accuracy": result.accuracy,
            "verification_auc": result.auc,
            "verification_tar_at_far_1e-2": result.true_accept_rate(0.01),
        }
