"""Perceptual networks as plain data: a picture encoder out of a checkpoint, or a VGG from a file of the user."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor, nn

from fusionray.checkpoint.info import find_checkpoint, read_info
from fusionray.checkpoint.models import load_weights
from fusionray.checkpoint.reader import load_tensors
from fusionray.errors import CheckpointMissing, InputMissing
from fusionray.nets.picture_encoder import PictureEncoder, PictureEncoderConfig
from fusionray.nets.vgg import VggFeatures
from fusionray.storage import filesystem as storage

FILE_ENDING = ".safetensors"
# Of the types that safetensors knows, those in which weights are stored.
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
# A header of a thousand layers takes 100 kB.
MAX_HEADER_BYTES = 10 * 2**20


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

    def is_same(self, other: PerceptualState) -> bool:
        """Return whether two networks have the same weights."""
        return self.weights.keys() == other.weights.keys() and all(
            tensor.shape == other.weights[name].shape and torch.equal(tensor, other.weights[name])
            for name, tensor in self.weights.items()
        )


def load_perceptual(location: str) -> PerceptualState:
    """Load a perceptual network from a checkpoint or run folder, or from a .safetensors file of VGG weights.

    Raises: CheckpointMissing, InputMissing.
    """
    if location.endswith(FILE_ENDING):
        weights = read_safetensors(location)
        try:
            VggFeatures(weights)
        except ValueError as error:
            raise InputMissing(f"{location}: {error}; save the state of torchvision's vgg16 or vgg19") from None
        return PerceptualState("vgg", {}, weights)
    folder = find_checkpoint(location)
    config = read_info(folder).metadata.get("picture_encoder")
    if config is None:
        raise CheckpointMissing(f"{folder}: holds no picture encoder; train one with `--preset style-encoder`")
    return PerceptualState("encoder", config, load_tensors(folder, "averages.encoder."))


def features_of(network: nn.Module, picture_N3HW: Tensor) -> list[Tensor]:
    """Return the feature maps of a network that `PerceptualState.build` built."""
    return cast(PerceptualNetwork, network).features(picture_N3HW)


def read_safetensors(location: str) -> dict[str, Tensor]:
    """Read a safetensors file: the length of a JSON header, the header, and the bytes of all tensors. It runs no code.

    Raises: InputMissing if it cannot be read, or is not such a file.

    Source: the format's description in huggingface/safetensors, README.md.
    """
    try:
        data = storage.read_bytes(location)
    except OSError as error:
        raise InputMissing(f"{location}: cannot be read ({error.strerror or error}); check the path") from None
    try:
        length = int.from_bytes(data[:8], "little")
        if not 2 <= length <= min(MAX_HEADER_BYTES, len(data) - 8):
            raise ValueError("its header does not fit into the file")
        header = json.loads(data[8 : 8 + length])
        body = memoryview(data)[8 + length :]
        return {name: read_tensor(body, entry) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputMissing(f"{location}: is not a safetensors file of float tensors ({error})") from None


def read_tensor(body: memoryview, entry: Mapping[str, Any]) -> Tensor:
    """Read one tensor as float32.

    Raises: ValueError, KeyError, TypeError for an entry that does not fit.
    """
    dtype, shape = DTYPES[entry["dtype"]], [int(side) for side in entry["shape"]]
    start, end = entry["data_offsets"]
    if not 0 <= start <= end <= len(body):
        raise ValueError("a tensor lies outside the file")
    # `frombuffer` needs memory that may be written to.
    values = torch.frombuffer(bytearray(body[start:end]), dtype=dtype) if end > start else torch.empty(0, dtype=dtype)
    return values.reshape(shape).float()
