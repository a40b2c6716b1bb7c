"""The face-fusion recipe at its smallest, and batches of synthetic pairs for it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fusionray.checkpoint.info import CheckpointInfo
from fusionray.checkpoint.writer import CheckpointWriter
from fusionray.data import synthetic
from fusionray.nets.discriminator import DiscriminatorConfig
from fusionray.nets.generator import GeneratorConfig
from fusionray.nets.identity import IdentityEncoder, IdentityEncoderConfig
from fusionray.nets.source_encoder import SourceConfig
from fusionray.recipes.arcface_crop import crop_to_arcface_affine
from fusionray.recipes.augmentation import AugmentationConfig
from fusionray.recipes.face_fusion.recipe import FaceFusionRecipe
from fusionray.recipes.face_fusion.settings import FaceFusionConfig, FusionLossWeights
from fusionray.recipes.identity import IdentityClassifier, IdentityRecipeConfig
from fusionray.training.config import DataConfig, TrainConfig
from fusionray.types import PairBatch, SyntheticTruth

SIZE = 32
ENCODER = IdentityEncoderConfig(channels=(8, 8, 8, 8), stem_stride=4)
# The least that a generator can see of the source.
TINY_SOURCE = SourceConfig(channels=(4, 4, 8), detail=(2, 2), heads=2)
# A generator that looks at the source: the smallest that can.
SEEING = GeneratorConfig(
    size=64,
    channels=(4, 8, 16),
    bottleneck_blocks=1,
    style_length=16,
    source=TINY_SOURCE,
)
STILL = AugmentationConfig(rotation_degrees=0, brightness=0, contrast=0, saturation=0, hue=0, flip=0)
EVERY_LOSS = {
    "adversarial": 1.0,
    "identity": 1.0,
    "reconstruction": 1.0,
    "truth": 1.0,
    "structure": 1.0,
    "feature_matching": 1.0,
    "cycle": 1.0,
    "mask": 1.0,
    "gradient_penalty": 1.0,
}
NO_LOSS = dict.fromkeys(EVERY_LOSS, 0.0)


def build_config(weights: dict[str, float] | None = None, **changes: Any) -> FaceFusionConfig:
    settings: dict[str, Any] = {
        "generator": GeneratorConfig(size=SIZE, channels=(8, 16), bottleneck_blocks=1, style_length=16),
        "discriminator": DiscriminatorConfig(channels=(4, 8), scales=2),
        "weights": FusionLossWeights(**(EVERY_LOSS if weights is None else weights)),
        "gradient_penalty_interval": 1,
    }
    return FaceFusionConfig(**{**settings, **changes})


def build_recipe(config: FaceFusionConfig | None = None, seed: int = 0) -> FaceFusionRecipe:
    torch.manual_seed(seed)
    encoder = IdentityEncoder(ENCODER).eval().requires_grad_(False)
    return FaceFusionRecipe(
        config or build_config(), identity_encoder=encoder, face_view_23=crop_to_arcface_affine("arcface_128")
    )


def save_encoder(folder: Path) -> None:
    """Write the only checkpoint of an identity run that learned nothing yet into its run folder."""
    torch.manual_seed(0)
    recipe = IdentityRecipeConfig(encoder=ENCODER)
    config = TrainConfig(data=DataConfig(shards="x", size=SIZE), recipe=recipe)
    weights = IdentityClassifier(recipe, num_people=4, num_traits=0).state_dict()
    info = CheckpointInfo(
        config=config.model_dump(mode="json"),
        num_people=4,
        metadata={"identity_encoder": ENCODER.model_dump(mode="json")},
        data_digest="d",
        images_seen=0,
        seconds=0.0,
        metrics={},
    )
    writer = CheckpointWriter(str(folder), keep=1)
    writer.begin({f"averages.classifier.{name}": value for name, value in weights.items()}, info)
    writer.close()


@lru_cache(maxsize=16)
def build_pairs(count: int, seed: int = 0, *, with_truth: bool = True, same: int = 1, size: int = SIZE) -> PairBatch:
    """Render `count` pairs; the first `same` of them show one person twice."""
    people = synthetic.sample_identities(2 * count, seed)
    source_identity, target_identity = people[:count], people[count:].clone()
    target_identity[:same] = source_identity[:same]
    attributes = synthetic.sample_attributes(2 * count, seed)
    view = torch.tensor([[0.5, 0.0, 0.25], [0.0, 0.5, 0.25]]).expand(count, 2, 3)

    def draw(identity: Tensor, how: Tensor) -> Tensor:
        return (synthetic.render(identity, how, size, view).clamp(0, 1) * 255).round().to(torch.uint8)

    truth = SyntheticTruth(source_identity, target_identity, attributes[count:], view) if with_truth else None
    return PairBatch(
        draw(source_identity, attributes[:count]),
        draw(target_identity, attributes[count:]),
        torch.arange(count) < same,
        truth,
    )
