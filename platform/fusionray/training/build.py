"""From configuration and checkpoint to a recipe with its networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fusionray.errors import CheckpointMissing
from fusionray.faces.align import fit_similarity, load_template
from fusionray.nets.generator import Generator
from fusionray.nets.identity import IDENTITY_TEMPLATE, IdentityEncoder, IdentityEncoderConfig
from fusionray.recipes.face_fusion import FaceFusionConfig, FaceFusionRecipe
from fusionray.recipes.identity import IdentityRecipe
from fusionray.training.checkpoint import CheckpointInfo, find_checkpoint, load_checkpoint
from fusionray.training.settings import TrainConfig


@dataclass(frozen=True)
class EncoderState:
    """A trained identity encoder as plain data that can travel to workers."""

    config: dict[str, Any]
    weights: dict[str, Tensor]

    def build(self) -> IdentityEncoder:
        """Build the network, frozen and in eval mode."""
        encoder = IdentityEncoder(IdentityEncoderConfig.model_validate(self.config))
        encoder.load_state_dict(self.weights)
        return encoder.eval().requires_grad_(False)


def build_recipe(
    config: TrainConfig, *, num_people: int, encoder: EncoderState | None, synthetic_faces: bool = False
) -> IdentityRecipe | FaceFusionRecipe:
    """Build the recipe of a configuration; networks get their first weights from `run.seed`.

    `encoder` is needed by face fusion only.
    """
    torch.manual_seed(config.run.seed)
    view = face_view(config.data.template)
    if isinstance(config.recipe, FaceFusionConfig):
        assert encoder is not None, "face fusion is watched by an identity encoder"
        return FaceFusionRecipe(config.recipe, identity_encoder=encoder.build(), face_view_23=view)
    return IdentityRecipe(config.recipe, num_people=num_people, face_view_23=view, synthetic_faces=synthetic_faces)


def face_view(template: str) -> Tensor:
    """Give the map from the unit square of the arcface_112 face to the unit square of a template's crop, [2,3]."""
    matrix = fit_similarity(load_template(IDENTITY_TEMPLATE).unit_points, load_template(template).unit_points)
    return torch.from_numpy(matrix).to(torch.float32)


def load_encoder(location: str) -> EncoderState:
    """Take the identity encoder out of a checkpoint or run folder of either recipe.

    Raises: CheckpointMissing.
    """
    info, state = load_checkpoint(find_checkpoint(location))
    return encoder_from_checkpoint(info, state, location)


def encoder_from_checkpoint(info: CheckpointInfo, state: Mapping[str, Any], where: str) -> EncoderState:
    """Take the identity encoder out of a loaded checkpoint: the trained one, or the one that supervised."""
    if info.identity_encoder is None:
        raise CheckpointMissing(f"{where}: holds no identity encoder")
    if "identity_encoder" in state:
        return EncoderState(info.identity_encoder, state["identity_encoder"])
    prefix = "encoder."
    averaged = state["averages"]["classifier"]
    weights = {name.removeprefix(prefix): value for name, value in averaged.items() if name.startswith(prefix)}
    return EncoderState(info.identity_encoder, weights)


@dataclass(frozen=True)
class TrainedFusion:
    """What export and evaluation take from a face-fusion checkpoint."""

    config: TrainConfig
    info: CheckpointInfo
    generator: Generator
    encoder: IdentityEncoder


def load_fusion(location: str | Path) -> TrainedFusion:
    """Load the averaged generator and its identity encoder from a checkpoint or run folder.

    Raises: CheckpointMissing, also for a checkpoint of another recipe.
    """
    folder = find_checkpoint(str(location))
    info, state = load_checkpoint(folder)
    config = TrainConfig.model_validate(info.config)
    if not isinstance(config.recipe, FaceFusionConfig):
        raise CheckpointMissing(f"{folder}: is a checkpoint of the {config.recipe.name} recipe, not of face_fusion")
    generator = Generator(config.recipe.generator)
    generator.load_state_dict(state["averages"]["generator"])
    encoder = encoder_from_checkpoint(info, state, str(folder)).build()
    return TrainedFusion(config, info, generator.eval().requires_grad_(False), encoder)
