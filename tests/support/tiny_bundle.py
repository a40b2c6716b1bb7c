"""A real bundle, small enough to be made in a test: two ONNX models put together by hand, no training, no torch.

The generator inverts the target and tints it by the source; the identity encoder projects a blurred crop at random.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from fusionray.bundle.bundle import Bundle, write_bundle
from fusionray.bundle.description import BundleDescription, Lineage, Parity, describe_tensors

FLOAT = TensorProto.FLOAT
TINY_SIZE = 64


def build_generator(size: int = TINY_SIZE, batch: str | int = "N", source: str = "source", length: int = 512) -> bytes:
    """output = 1 - target + 0.5 * source[:3]; mask = 1."""
    nodes = [
        helper.make_node("Slice", [source, "start", "stop", "axis"], ["tint"]),
        helper.make_node("Unsqueeze", ["tint", "last_axes"], ["tint_NC11"]),
        helper.make_node("Mul", ["tint_NC11", "half"], ["soft_tint"]),
        helper.make_node("Sub", ["one", "target"], ["inverse"]),
        helper.make_node("Add", ["inverse", "soft_tint"], ["output"]),
        helper.make_node("Slice", ["target", "first", "second", "axis"], ["red"]),
        helper.make_node("Mul", ["red", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "one"], ["mask"]),
    ]
    constants = {
        "start": np.array([0]),
        "stop": np.array([3]),
        "axis": np.array([1]),
        "last_axes": np.array([2, 3]),
        "first": np.array([0]),
        "second": np.array([1]),
        "half": np.array(0.5, np.float32),
        "one": np.array(1.0, np.float32),
        "zero": np.array(0.0, np.float32),
    }
    picture = [batch, 3, size, size]
    inputs = {source: [batch, length], "target": picture}
    return serialise(nodes, constants, inputs, {"output": picture, "mask": [batch, 1, size, size]})


def build_identity(seed: int = 0) -> bytes:
    """source = unit(projection @ blur(input))."""
    projection = np.random.default_rng(seed).standard_normal((192, 512)).astype(np.float32)
    nodes = [
        helper.make_node("AveragePool", ["input"], ["blurred"], kernel_shape=[14, 14], strides=[14, 14]),
        helper.make_node("Flatten", ["blurred"], ["flat"]),
        helper.make_node("MatMul", ["flat", "projection"], ["projected"]),
        helper.make_node("LpNormalization", ["projected"], ["source"], axis=1, p=2),
    ]
    return serialise(nodes, {"projection": projection}, {"input": ["N", 3, 112, 112]}, {"source": ["N", 512]})


def serialise(
    nodes: list[object],
    constants: dict[str, NDArray[np.generic]],
    inputs: dict[str, list[str | int]],
    outputs: dict[str, list[str | int]],
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(model.SerializeToString())


def describe_tiny(size: int = TINY_SIZE, template: str = "arcface_128") -> BundleDescription:
    return BundleDescription(
        name="tiny",
        size=size,
        template=template,
        tensors=describe_tensors(size, 0.0, 1.0),
        licence="Apache-2.0",
        lineage=Lineage(data_manifest="0" * 64, config={"preset": "none"}, code_version="test"),
        parity=Parity(tolerance=1e-4, largest_difference=0.0),
    )


def write_tiny_bundle(folder: Path) -> Bundle:
    return write_bundle(
        folder, {"generator.onnx": build_generator(), "identity.onnx": build_identity()}, describe_tiny()
    )
