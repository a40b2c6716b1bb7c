"""Face restorers at their smallest: models that copy, invert or enlarge a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import yaml
from onnx import TensorProto, helper, numpy_helper


def write_restorer(
    path: Path, kind: str = "copy", *, factor: int = 1, channels: int = 3, weighted: bool = False
) -> Path:
    """Write a model: `copy`, or `invert` of pictures from -1 to 1, enlarged by a factor and times an input `weight`."""
    nodes = [helper.make_node("Neg" if kind == "invert" else "Identity", ["picture"], ["made"])]
    constants, last = [], "made"
    if factor > 1:
        constants.append(numpy_helper.from_array(np.array([1, 1, factor, factor], np.float32), "scales"))
        nodes.append(helper.make_node("Resize", [last, "", "scales"], ["large"], mode="linear"))
        last = "large"
    inputs = [helper.make_tensor_value_info("picture", TensorProto.FLOAT, [1, channels, "h", "w"])]
    if weighted:
        inputs.append(helper.make_tensor_value_info("weight", TensorProto.DOUBLE, [1]))
        nodes.append(helper.make_node("Cast", ["weight"], ["number"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Mul", [last, "number"], ["weighted"]))
        last = "weighted"
    nodes.append(helper.make_node("Identity", [last], ["restored"]))
    output = helper.make_tensor_value_info("restored", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, kind, inputs, [output], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def write_restorer_settings(folder: Path, kind: str = "invert") -> Path:
    """Write a model and the YAML file that names it."""
    model = write_restorer(folder / f"{kind}.onnx", kind)
    path = folder / "restorer.yaml"
    path.write_text(yaml.safe_dump({"model": str(model), "licence": "MIT", "size": 96, "strength": 1.0}))
    return path
