"""From configuration and checkpoint to a recipe with its networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fusionray.checkpoint.info import CheckpointInfo, find_checkpoint, read_info
from fusionray.checkpoint.reader import list_tensors, load_tensors
from fusionray.config import validate
from fusionray.errors import CheckpointMissing
from fusionray.faces.align import fit_similarity, load_template
from fusionray.nets.fusion import FusionNetwork, SourceReader
from fusionray.nets.generator import Generator
from fusionray.nets.identity import IDENTITY_TEMPLATE, IdentityEncoder, IdentityEncoderConfig
from fusionray.recipes.attributes import (
    AttributeReader,
    AttributeReaderConfig,
    AttributesRecipe,
    AttributesRecipeConfig,
)
from fusionray.recipes.face_fusion import FaceFusionRecipe
from fusionray.recipes.face_fusion_config import FaceFusionConfig
from fusionray.recipes.identity import IdentityRecipe
from fusionray.recipes.recipe import Recipe
from fusionray.recipes.single_faces import ParameterStandard
from fusionray.training.config import TrainConfig

# Names in Engine.tensors().
AVERAGED_FUSION = "averages.generator."
SUPERVISING_ENCODER = "frozen.identity."
TRAINED_ENCODER = "averages.classifier.encoder."
TRAINED_READER = "averages.reader."

BuiltRecipe = FaceFusionRecipe | IdentityRecipe | AttributesRecipe


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
) -> BuiltRecipe:
    """Build the recipe of a configuration; networks get their first weights from `run.seed`.

    `encoder` is needed by face fusion only.
    """
    torch.manual_seed(config.run.seed)
    view = crop_to_arcface_affine(config.data.template)
    if isinstance(config.recipe, FaceFusionConfig):
        assert encoder is not None, "face fusion is watched by an identity encoder"
        return FaceFusionRecipe(config.recipe, identity_encoder=encoder.build(), face_view_23=view)
    if isinstance(config.recipe, AttributesRecipeConfig):
        return AttributesRecipe(config.recipe, face_view_23=view)
    return IdentityRecipe(config.recipe, num_people=num_people, face_view_23=view, synthetic_faces=synthetic_faces)


def crop_to_arcface_affine(template: str) -> Tensor:
    """Give the map from the unit square of the arcface_112 face to the unit square of a template's crop, [2,3]."""
    matrix = fit_similarity(load_template(IDENTITY_TEMPLATE).unit_points, load_template(template).unit_points)
    return torch.from_numpy(matrix).to(torch.float32)


def describe_validation(recipe: Recipe[Any]) -> dict[str, dict[str, Any]]:
    """Give the configs of the networks that others can take out of a checkpoint, by their field of CheckpointInfo."""
    if isinstance(recipe, AttributesRecipe):
        return {"attribute_reader": recipe.reader_config.model_dump(mode="json")}
    encoder = recipe.config.encoder if isinstance(recipe, IdentityRecipe) else recipe.frozen["identity"].config
    assert isinstance(encoder, IdentityEncoderConfig)
    return {"identity_encoder": encoder.model_dump(mode="json")}


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


def load_reader(location: str) -> AttributeReader:
    """Load the averaged attribute reader of a checkpoint or run folder, frozen and in eval mode.

    Raises: CheckpointMissing, also for a checkpoint of another recipe.
    """
    folder = find_checkpoint(location)
    info = read_info(folder)
    if info.attribute_reader is None:
        raise CheckpointMissing(f"{folder}: holds no attribute reader; train one with `--preset attributes-small`")
    config = AttributeReaderConfig.model_validate(info.attribute_reader)
    reader = AttributeReader(config, ParameterStandard.blank(len(config.names)))
    load_weights(reader, load_tensors(folder, TRAINED_READER), folder)
    return reader.eval().requires_grad_(False)


def start_from(recipe: Recipe[Any], location: str) -> None:
    """Give the networks of a recipe the weights of a checkpoint or run folder: the averaged ones where there are any.

    Raises: CheckpointMissing, also where a network is missing there or was built another way.
    """
    folder = find_checkpoint(location)
    for name, network in recipe.networks.items():
        kind = "averages" if name in recipe.averaged else "networks"
        load_weights(network, load_tensors(folder, f"{kind}.{name}."), folder)


def load_weights(network: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Load weights into a network that was built from the configuration beside them.

    Raises: CheckpointMissing if it has been built another way since.
    """
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointMissing(
            f"{where}: does not fit the networks of this version and configuration "
            f"({' '.join(str(error).split())[:200]}); use the version and settings that trained it, or train again"
        ) from None


@dataclass(frozen=True)
class TrainedFusion:
    """What export and evaluation take from a face-fusion checkpoint; `encoder` is the one that supervised."""

    config: TrainConfig
    info: CheckpointInfo
    network: FusionNetwork
    encoder: IdentityEncoder

    @property
    def generator(self) -> Generator:
        """Give the network that fuses."""
        return self.network.generator

    @property
    def reader(self) -> SourceReader:
        """Give the network that tells the generator who the source is."""
        return SourceReader(self.encoder, self.network).eval()


def load_fusion(location: str | Path) -> TrainedFusion:
    """Load the averaged fusion network and its identity encoder from a checkpoint or run folder.

    Raises: CheckpointMissing, also for a checkpoint of another recipe.
    """
    folder = find_checkpoint(str(location))
    info = read_info(folder)
    config = validate(TrainConfig, info.config, f"{folder}: its configuration is of another version of fusionray")
    if not isinstance(config.recipe, FaceFusionConfig):
        raise CheckpointMissing(f"{folder}: is a checkpoint of the {config.recipe.name} recipe, not of face_fusion")
    network = FusionNetwork(config.recipe.generator)
    load_weights(network, load_tensors(folder, AVERAGED_FUSION), folder)
    return TrainedFusion(
        config, info, network.eval().requires_grad_(False), encoder_from_checkpoint(folder, info).build()
    )
