"""Face parsers at their smallest: one that always says the same, in a bundle, and one that knows nothing, in a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from onnx import TensorProto, helper, numpy_helper

from fusionray.bundle.bundle import Bundle, write_bundle
from fusionray.bundle.description import ParserDescription
from fusionray.data import synthetic
from fusionray.nets.face_parser import FaceParserConfig
from fusionray.recipes.face_parsing.recipe import FaceParsingConfig, FaceParsingRecipe
from fusionray.training.config import DataConfig, RunConfig, TrainConfig
from tests.support.tiny_bundle import build_generator, build_identity, describe_tiny
from tests.support.tiny_world import save

SIZE = 64
PARTS = ("background", "neck", "face")


def build_parser(port: str = "parts") -> bytes:
    """Build a model that sees background above, a face in the middle and a neck below, whatever the picture."""
    parts = np.full((1, len(PARTS), SIZE, SIZE), 0.01, np.float32)
    parts[:, 0, : SIZE // 4] = parts[:, 2, SIZE // 4 : SIZE * 5 // 8] = parts[:, 1, SIZE * 5 // 8 :] = 0.98
    nodes = [
        helper.make_node("ReduceMean", ["input", "channels"], ["grey"], keepdims=1),
        helper.make_node("Mul", ["grey", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "always"], [port]),
    ]
    constants = {"channels": np.array([1]), "zero": np.array(0.0, np.float32), "always": parts}
    graph = helper.make_graph(
        nodes,
        "parser",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info(port, TensorProto.FLOAT, ["N", len(PARTS), SIZE, SIZE])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString())


def write_parser_bundle(
    folder: Path, parser: bytes | None = None, template: str = "head_256", parts: tuple[str, ...] = PARTS
) -> Bundle:
    """Write the tiny bundle with a parser."""
    described = ParserDescription(template=template, size=SIZE, parts=parts)
    files = {"generator.onnx": build_generator(), "identity.onnx": build_identity()}
    files["parser.onnx"] = parser or build_parser()
    return write_bundle(folder, files, describe_tiny().model_copy(update={"parser": described}))


def save_parser(folder: Path) -> None:
    """Write the only checkpoint of a face-parsing run that learned nothing."""
    torch.manual_seed(4)
    recipe = FaceParsingRecipe(FaceParsingConfig(parser=FaceParserConfig(channels=(4, 8))))
    data = DataConfig(shards="x", size=32, template="head_256")
    config = TrainConfig(run=RunConfig(name="parser"), data=data, recipe=recipe.config)
    tensors = {f"averages.parser.{name}": value for name, value in recipe.networks["parser"].state_dict().items()}
    metadata = {"face_parser": recipe.config.parser.model_dump(mode="json"), "parts": list(synthetic.PARTS)}
    save(folder, config, tensors, **metadata)
