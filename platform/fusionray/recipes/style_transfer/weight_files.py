"""Weights of convolutions out of files that users bring: safetensors, and ONNX. Neither runs code.

A TorchScript archive is not read: to open one is to run what is in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fusionray.errors import InputMissing
from fusionray.storage import filesystem as storage

# Of the types that safetensors knows, those in which weights are stored.
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
# A header of a thousand layers takes 100 kB.
MAX_HEADER_BYTES = 10 * 2**20
# Layers that torchvision numbers, and those that end the convolutions of a VGG.
COUNTED, ENDING = {"Conv", "Relu", "MaxPool"}, {"Flatten", "Reshape", "Gemm", "GlobalAveragePool", "AveragePool"}


def read_safetensors(location: str) -> dict[str, Tensor]:
    """Read a safetensors file: the length of a JSON header, the header, and the bytes of all tensors. It runs no code.

    Raises: InputMissing if it cannot be read, or is not such a file.

    Source: the format's description in huggingface/safetensors, README.md.
    """
    data = read_file(location)
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


def read_onnx(location: str) -> dict[str, Tensor]:
    """Read the convolutions of an ONNX model, one after another from its input on, named and numbered as torchvision's.

    Convolution, ReLU and pooling count one each: `features.0.weight`, `features.0.bias`, `features.2.weight`, ...
    Weights in files beside the model are refused.

    Raises: InputMissing if it cannot be read, or is not such a model.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model_from_string(read_file(location))
        stored = model.graph.initializer
        if any(map(onnx.external_data_helper.uses_external_data, stored)):
            raise ValueError("its weights lie in another file")
        arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in stored}
        weights: dict[str, Tensor] = {}
        number = 0
        for node in model.graph.node:
            if node.op_type in ENDING:
                break
            if node.op_type == "Conv":
                for name, value in zip(("weight", "bias"), node.input[1:], strict=False):
                    weights[f"features.{number}.{name}"] = torch.tensor(arrays[value]).float()
            number += node.op_type in COUNTED
    except (DecodeError, ValueError, KeyError, TypeError) as error:
        raise InputMissing(f"{location}: is not an ONNX model with its weights inside ({error})") from None
    return weights


def read_file(location: str) -> bytes:
    """Read a file.

    Raises: InputMissing.
    """
    try:
        return storage.read_bytes(location)
    except OSError as error:
        raise InputMissing(f"{location}: cannot be read ({error.strerror or error}); check the path") from None


READERS: dict[str, Callable[[str], dict[str, Tensor]]] = {".safetensors": read_safetensors, ".onnx": read_onnx}
