"""A tiny classifier of pictures: its score is the mean of red."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

# Settings with which the classifier sees colours from 0 to 1, and its scores stay as they are.
IN_RANGE: dict[str, Any] = {"mean": (0, 0, 0), "std": (1, 1, 1), "activation": "none"}


def write_classifier(path: Path, *, channels_first: bool = True, divide_by: float = 1.0) -> Path:
    """Write a model of one output, `red` [N,1]: the mean of the first channel, divided."""
    shape: list[str | int] = ["n", 3, 32, 32] if channels_first else ["n", "h", "w", 3]
    spatial, axis = ([2, 3], 1) if channels_first else ([1, 2], 1)
    numbers = {"spatial": spatial, "first": [0], "last": [1], "axis": [axis]}
    constants = [helper.make_tensor(name, TensorProto.INT64, [len(value)], value) for name, value in numbers.items()]
    constants.append(helper.make_tensor("divisor", TensorProto.FLOAT, [1], [divide_by]))
    nodes = [
        helper.make_node("ReduceMean", ["picture", "spatial"], ["means"], keepdims=0),
        helper.make_node("Slice", ["means", "first", "last", "axis"], ["mean"]),
        helper.make_node("Div", ["mean", "divisor"], ["red"]),
    ]
    graph = helper.make_graph(
        nodes,
        "red",
        [helper.make_tensor_value_info("picture", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("red", TensorProto.FLOAT, ["n", 1])],
        constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path
