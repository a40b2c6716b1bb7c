"""Load networks from checkpoints: identity encoders, attribute readers, and the generator of a fusion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

from pydantic import ConfigDict
from torch import Tensor, nn

from fusionray.checkpoint.info import CheckpointInfo, find_checkpoint, read_info
from fusionray.checkpoint.reader import list_tensors, load_tensors
from fusionray.config import Section, validate
from fusionray.errors import CheckpointMissing
from fusionray.metrics.attribute_reader import AttributeReader, AttributeReaderConfig, ParameterScaler
from fusionray.nets.face_parser import FaceParser, FaceParserConfig
from fusionray.nets.fusion import FusionNetwork, SourceConditioner
from fusionray.nets.generator import Generator, GeneratorConfig
from fusionray.nets.growth import grow_weights
from fusionray.nets.identity import IdentityEncoder, IdentityEncoderConfig

# Names in `state_tensors` of an engine.
EMA_FUSION = "averages.generator."
SUPERVISING_ENCODER = "frozen.identity."
TRAINED_ENCODER = "averages.classifier.encoder."
TRAINED_READER = "averages.reader."
TRAINED_PARSER = "averages.parser."
# Names in `CheckpointInfo.metadata`: the configs of networks that others take out of a checkpoint.
IDENTITY_ENCODER = "identity_encoder"
ATTRIBUTE_READER = "attribute_reader"
FACE_PARSER, PARTS = "face_parser", "parts"
FACE_FUSION = "face_fusion"

OTHER_VERSION = "{}: its configuration is of another version of fusionray"


@dataclass(frozen=True)
class EncoderState:
    """A trained identity encoder as plain data that can be sent to workers."""

    config: dict[str, Any]
    weights: dict[str, Tensor]

    def build(self) -> IdentityEncoder:
        """Build the network, frozen and in eval mode."""
        encoder = IdentityEncoder(IdentityEncoderConfig.model_validate(self.config))
        load_weights(encoder, self.weights, "the identity encoder's checkpoint")
        return encoder.eval().requires_grad_(False)


def load_encoder(location: str) -> EncoderState:
    """Load the identity encoder from a checkpoint or run folder of any recipe that has one.

    Raises: CheckpointMissing.
    """
    folder = find_checkpoint(location)
    return encoder_from_checkpoint(folder, read_info(folder))


def encoder_from_checkpoint(folder: str, info: CheckpointInfo) -> EncoderState:
    """Load the identity encoder from a checkpoint: the one that supervised, or the EMA of the trained one."""
    if IDENTITY_ENCODER not in info.metadata:
        raise CheckpointMissing(f"{folder}: holds no identity encoder")
    supervised = any(name.startswith(SUPERVISING_ENCODER) for name in list_tensors(folder))
    prefix = SUPERVISING_ENCODER if supervised else TRAINED_ENCODER
    return EncoderState(info.metadata[IDENTITY_ENCODER], load_tensors(folder, prefix))


def load_reader(location: str) -> AttributeReader:
    """Load the EMA attribute reader of a checkpoint or run folder, frozen and in eval mode.

    Raises: CheckpointMissing, also for a checkpoint of another recipe.
    """
    folder = find_checkpoint(location)
    info = read_info(folder)
    if ATTRIBUTE_READER not in info.metadata:
        raise CheckpointMissing(f"{folder}: holds no attribute reader; train one with `--preset attributes-small`")
    config = AttributeReaderConfig.model_validate(info.metadata[ATTRIBUTE_READER])
    reader = AttributeReader(config, ParameterScaler.identity(len(config.names)))
    load_weights(reader, load_tensors(folder, TRAINED_READER), folder)
    return reader.eval().requires_grad_(False)


def load_face_parser(location: str) -> TrainedParser:
    """Load the EMA face parser of a checkpoint or run folder, frozen and in eval mode.

    Raises: CheckpointMissing, also for a checkpoint of another recipe.
    """
    folder = find_checkpoint(location)
    info = read_info(folder)
    if FACE_PARSER not in info.metadata:
        raise CheckpointMissing(f"{folder}: holds no face parser; train one with `--preset face-parser`")
    parts = tuple(info.metadata[PARTS])
    parser = FaceParser(FaceParserConfig.model_validate(info.metadata[FACE_PARSER]), len(parts))
    load_weights(parser, load_tensors(folder, TRAINED_PARSER), folder)
    return TrainedParser(parser.eval().requires_grad_(False), parts, read_stored_config(folder, info))


class TrainedNetworks(Protocol):
    """The part of a recipe whose weights another run can begin with (`recipes.recipe.Recipe`)."""

    @property
    def networks(self) -> Mapping[str, nn.Module]: ...

    @property
    def ema_names(self) -> frozenset[str]: ...


def start_from(recipe: TrainedNetworks, location: str, size: int) -> None:
    """Load the weights of a checkpoint or run folder into the networks of a recipe; EMA weights if there are any.

    Networks for smaller crops grow (`nets.growth`); `size`: side of the recipe's crops.

    Raises: CheckpointMissing, also if a network is missing there, has another shape or would grow by other levels than
    its crops do; ConfigInvalid.
    """
    folder = find_checkpoint(location)
    size_ratio = Fraction(size, read_stored_config(folder, read_info(folder)).data.size)
    for name, network in recipe.networks.items():
        kind = "averages" if name in recipe.ema_names else "networks"
        weights = load_tensors(folder, f"{kind}.{name}.")
        try:
            grown = grow_weights(network, weights, size_ratio)
        except ValueError as error:
            raise CheckpointMissing(f"run.start_from={folder}: {error}") from None
        load_weights(network, grown, folder)


def load_weights(network: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Load weights into a network that was built from the configuration stored with them.

    Raises: CheckpointMissing if they do not fit.
    """
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointMissing(
            f"{where}: does not fit the networks of this version and configuration "
            f"({' '.join(str(error).split())[:200]}); use the version and settings that trained it, or train again"
        ) from None


class StoredSection(Section):
    """A part of the configuration that a checkpoint was trained with; other keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class StoredRun(StoredSection):
    name: str


class StoredData(StoredSection):
    shards: str
    size: int
    template: str


class StoredRecipe(StoredSection):
    name: str


class StoredFusionRecipe(StoredRecipe):
    generator: GeneratorConfig


class StoredConfig(StoredSection):
    """The part of a training configuration that users of the model need."""

    run: StoredRun
    data: StoredData
    recipe: StoredRecipe


class StoredFusionConfig(StoredConfig):
    recipe: StoredFusionRecipe


@dataclass(frozen=True)
class TrainedParser:
    """A loaded face parser, the names of its parts, and the configuration that it was trained with."""

    network: FaceParser
    parts: tuple[str, ...]
    config: StoredConfig


@dataclass(frozen=True)
class TrainedFusion:
    """A loaded face-fusion checkpoint; `encoder` is the one that supervised."""

    config: StoredFusionConfig
    info: CheckpointInfo
    network: FusionNetwork
    encoder: IdentityEncoder

    @property
    def generator(self) -> Generator:
        """The generator of the fusion network."""
        return self.network.generator

    @property
    def reader(self) -> SourceConditioner:
        """The network that encodes the source for the generator, in eval mode."""
        return SourceConditioner(self.encoder, self.network).eval()


def read_stored_config(folder: str, info: CheckpointInfo) -> StoredConfig:
    """Read the training configuration of a checkpoint.

    Raises: ConfigInvalid.
    """
    return validate(StoredConfig, info.config, OTHER_VERSION.format(folder))


def load_fusion(location: str | Path) -> TrainedFusion:
    """Load the EMA fusion network and its identity encoder from a checkpoint or run folder.

    Raises: CheckpointMissing, also for a checkpoint of another recipe.
    """
    folder = find_checkpoint(str(location))
    info = read_info(folder)
    recipe = read_stored_config(folder, info).recipe.name
    if recipe != FACE_FUSION:
        raise CheckpointMissing(f"{folder}: is a checkpoint of the {recipe} recipe, not of {FACE_FUSION}")
    config = validate(StoredFusionConfig, info.config, OTHER_VERSION.format(folder))
    network = FusionNetwork(config.recipe.generator)
    load_weights(network, load_tensors(folder, EMA_FUSION), folder)
    return TrainedFusion(
        config, info, network.eval().requires_grad_(False), encoder_from_checkpoint(folder, info).build()
    )
