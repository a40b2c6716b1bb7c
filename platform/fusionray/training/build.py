"""From configuration and checkpoint to a recipe with its networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fusionray.config import validate
from fusionray.errors import CheckpointMissing
from fusionray.faces.align import fit_similarity, load_template
from fusionray.nets.generator import Generator
from fusionray.nets.identity import IDENTITY_TEMPLATE, IdentityEncoder, IdentityEncoderConfig
from fusionray.recipes.face_fusion import FaceFusionConfig, FaceFusionRecipe
from fusionray.recipes.identity import IdentityRecipe
from fusionray.training.checkpoint.info import CheckpointInfo, find_checkpoint, read_info
from fusionray.training.checkpoint.tensors import list_tensors, load_tensors
from fusionray.training.settings import TrainConfig

# Names in Engine.tensors().
AVERAGED_GENERATOR = "averages.generator."
SUPERVISING_ENCODER = "frozen.identity."
TRAINED_ENCODER = "averages.classifier.encoder."


@dataclass(frozen=True)
class EncoderState:
    """A trained identity encoder as plain data that can travel to workers."""

    config: dict[str, Any]
    weights: dict[str, Tensor]

    def build(self) -> IdentityEncoder:
        """Build the network, frozen and in eval mode."""
        encoder = IdentityEncoder(IdentityEncoderConfig.model_validate(self.config))
        load_weights(encoder, self.weights, "the identity encoder's checkpoint")
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
    folder = find_checkpoint(location)
    return encoder_from_checkpoint(folder, read_info(folder))


def encoder_from_checkpoint(folder: str, info: CheckpointInfo) -> EncoderState:
    """Take the identity encoder out of a checkpoint: the one that supervised, or the trained one, averaged."""
    if info.identity_encoder is None:
        raise CheckpointMissing(f"{folder}: holds no identity encoder")
    supervised = any(name.startswith(SUPERVISING_ENCODER) for name in list_tensors(folder))
    prefix = SUPERVISING_ENCODER if supervised else TRAINED_ENCODER
    return EncoderState(info.identity_encoder, load_tensors(folder, prefix))


def load_weights(network: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Load weights into a network that was built from the configuration beside them.

    Raises: CheckpointMissing if it has been built another way since.
    """
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointMissing(
            f"{where}: does not fit the networks of this version ({' '.join(str(error).split())[:200]}); "
            "export it with the version that trained it, or train again"
        ) from None


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
    info = read_info(folder)
    config = validate(TrainConfig, info.config, f"{folder}: its configuration is of another version of fusionray")
    if not isinstance(config.recipe, FaceFusionConfig):
        raise CheckpointMissing(f"{folder}: is a checkpoint of the {config.recipe.name} recipe, not of face_fusion")
    generator = Generator(config.recipe.generator)
    load_weights(generator, load_tensors(folder, AVERAGED_GENERATOR), folder)
    encoder = encoder_from_checkpoint(folder, info).build()
    return TrainedFusion(config, info, generator.eval().requires_grad_(False), encoder)
