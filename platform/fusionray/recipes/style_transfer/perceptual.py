"""Perceptual networks as plain data: a picture encoder out of a checkpoint, or a VGG from a file of the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor, nn

from fusionray.checkpoint.info import find_checkpoint, read_info
from fusionray.checkpoint.models import load_weights
from fusionray.checkpoint.reader import load_tensors
from fusionray.errors import CheckpointMissing, InputMissing
from fusionray.nets.picture_encoder import PictureEncoder, PictureEncoderConfig
from fusionray.nets.vgg import VggFeatures, name_as_torchvision
from fusionray.recipes.style_transfer.weight_files import READERS

# Names of the supervising network in `state_tensors` of an engine.
SUPERVISOR = "frozen.perceptual."


class PerceptualNetwork(Protocol):
    """A frozen network whose feature maps pictures are compared by."""

    def features(self, picture_N3HW: Tensor) -> list[Tensor]:
        """Return feature maps [N,C,H,W], the finest first, of pictures in [-1,1]."""


@dataclass(frozen=True)
class PerceptualState:
    """A perceptual network as plain data that can be sent to workers; `config` is that of a picture encoder."""

    kind: Literal["encoder", "vgg"]
    config: dict[str, Any]
    weights: Mapping[str, Tensor]

    def build(self) -> nn.Module:
        """Build the network, frozen and in eval mode; it is a `PerceptualNetwork`."""
        network: nn.Module
        if self.kind == "vgg":
            network = VggFeatures(self.weights)
        else:
            network = PictureEncoder(PictureEncoderConfig.model_validate(self.config))
            load_weights(network, self.weights, "the perceptual network's checkpoint")
        return network.eval().requires_grad_(False)

    def is_same(self, state: Mapping[str, Tensor]) -> bool:
        """Return whether another network, whose state is given, has the same weights."""
        own = self.build().state_dict()
        return own.keys() == state.keys() and all(
            tensor.shape == state[name].shape and torch.equal(tensor, state[name]) for name, tensor in own.items()
        )


def load_perceptual(location: str) -> PerceptualState:
    """Load a perceptual network from a checkpoint or run folder, or from a .safetensors or .onnx file of a VGG.

    Raises: CheckpointMissing, InputMissing.
    """
    read = READERS.get(PurePosixPath(location).suffix)
    if read is not None:
        weights = read(location)
        try:
            VggFeatures(weights)
        except ValueError as error:
            raise InputMissing(f"{location}: {error}; bring torchvision's vgg16 or vgg19") from None
        return PerceptualState("vgg", {}, weights)
    folder = find_checkpoint(location)
    config = read_info(folder).metadata.get("picture_encoder")
    if config is None:
        raise CheckpointMissing(f"{folder}: holds no picture encoder; train one with `--preset style-encoder`")
    return PerceptualState("encoder", config, load_tensors(folder, "averages.encoder."))


def load_supervisor(checkpoint: str, kind: Literal["encoder", "vgg"], config: dict[str, Any]) -> PerceptualState:
    """Load the perceptual network that supervised a run, out of the checkpoint folder of that run.

    Raises: CheckpointMissing.
    """
    weights = load_tensors(checkpoint, SUPERVISOR)
    return PerceptualState(kind, config, name_as_torchvision(weights) if kind == "vgg" else weights)


def features_of(network: nn.Module, picture_N3HW: Tensor) -> list[Tensor]:
    """Return the feature maps of a network that `PerceptualState.build` built."""
    return cast(PerceptualNetwork, network).features(picture_N3HW)
