"""A small VGG, and the files that users bring it in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> Path:
    """Write float32 tensors as the format's description says."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, tensor in tensors.items():
        data = tensor.float().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    packed = json.dumps(header).encode()
    path.write_bytes(len(packed).to_bytes(8, "little") + packed + body)
    return path


def write_onnx(path: Path, tensors: dict[str, Tensor]) -> Path:
    """Write convolutions, each with its ReLU and pooling, as a model whose names say nothing."""
    nodes, stored, given = [], [], "picture"
    names = [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")]
    for number, name in enumerate(names):
        for kind in ("weight", "bias"):
            stored.append(numpy_helper.from_array(tensors[f"{name}.{kind}"].numpy(), f"{kind}{number}"))
        nodes += [
            helper.make_node("Conv", [given, f"weight{number}", f"bias{number}"], [f"a{number}"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"a{number}"], [f"b{number}"]),
            helper.make_node("MaxPool", [f"b{number}"], [f"c{number}"], kernel_shape=[2, 2], strides=[2, 2]),
        ]
        given = f"c{number}"
    nodes.append(helper.make_node("Flatten", [given], ["flat"]))
    picture = helper.make_tensor_value_info("picture", TensorProto.FLOAT, [1, 3, 64, 64])
    flat = helper.make_tensor_value_info("flat", TensorProto.FLOAT, None)
    path.write_bytes(helper.make_model(helper.make_graph(nodes, "vgg", [picture], [flat], stored)).SerializeToString())
    return path


def draw_vgg() -> dict[str, Tensor]:
    generator, before, weights = torch.Generator().manual_seed(0), 3, {}
    for number, width in {0: 4, 3: 6, 6: 8, 9: 10}.items():
        weights[f"features.{number}.weight"] = torch.randn(width, before, 3, 3, generator=generator) * 0.3
        weights[f"features.{number}.bias"] = torch.zeros(width)
        before = width
    return weights
