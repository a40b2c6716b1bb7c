"""Encoder, what lies between, and generator as one graph: source picture and target in 0..1, result in 0..1.

Inputs `source` [N,3,s,s] and `target` [N,3,S,S], output `output` [N,3,S,S], all RGB; through the mask it is the target.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import EMBEDDING_LENGTH, GENERATOR_NAME, IDENTITY_NAME, TensorDescription
from fusionray.errors import BundleInvalid
from fusionray.runtime.pixels import value_range
from fusionray.runtime.signature import has_mask
from fusionray.runtime.source_encoding import load_matrix

# From here on Slice, Clip and ReduceSum take what they need as inputs, which the joints are written in.
OLDEST_OPSET = 13
SMALLEST_LENGTH = 1e-12


class GraphMerger:
    """Collect nodes and constants; each step takes the name of a tensor and gives that of another."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.functions: list[Any] = []

    def constant(self, value: NDArray[Any]) -> str:
        """Add a constant."""
        name = f"joint_constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def step(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node."""
        name = f"joint_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=f"{name}_{operator}", **attributes))
        return name

    def alias(self, old: str, new: str) -> None:
        """Give a tensor a name that others expect."""
        self.nodes.append(helper.make_node("Identity", [old], [new], name=f"joint_{new}"))

    def place(self, model: Any, prefix: str, inputs: dict[str, str]) -> None:
        """Add a model; `inputs` maps its inputs to tensors. Its tensors bear the prefix from now on."""
        placed = onnx.compose.add_prefix(model, prefix)
        for port, tensor in inputs.items():
            self.alias(tensor, f"{prefix}{port}")
        self.nodes += list(placed.graph.node)
        self.constants += list(placed.graph.initializer)
        self.functions += list(placed.functions)

    def order(self, tensor: str, described: TensorDescription) -> str:
        """Turn RGB into the order of the channels that a model has, or back."""
        if described.order == "rgb":
            return tensor
        return self.step("Gather", tensor, self.constant(np.array([2, 1, 0])), axis=1)

    def from_unit(self, tensor: str, described: TensorDescription) -> str:
        """Turn RGB in 0..1 into a model's levels."""
        black_C11, span_C11 = value_range(described)
        scaled = self.step("Mul", self.order(tensor, described), self.constant(span_C11))
        return self.step("Add", scaled, self.constant(black_C11))

    def to_unit(self, tensor: str, described: TensorDescription) -> str:
        """Turn a model's levels into 0..1, cut off there; a picture into RGB."""
        black_C11, span_C11 = value_range(described)
        channels = 1 if described.meaning == "mask" else 3
        shifted = self.step("Sub", tensor, self.constant(black_C11[:channels]))
        scaled = self.order(self.step("Div", shifted, self.constant(span_C11[:channels])), described)
        bounds = (self.constant(np.array(value, np.float32)) for value in (0.0, 1.0))
        return self.step("Clip", scaled, *bounds)

    def normalize(self, source: str, length: int) -> str:
        """Give the embedding that a source begins with unit length."""
        first, middle, last, axis = (self.constant(np.array([n])) for n in (0, EMBEDDING_LENGTH, length, 1))
        embedding = self.step("Slice", source, first, middle, axis)
        squares = self.step("ReduceSum", self.step("Mul", embedding, embedding), axis, keepdims=1)
        norm = self.step("Max", self.step("Sqrt", squares), self.constant(np.array(SMALLEST_LENGTH, np.float32)))
        unit = self.step("Div", embedding, norm)
        if length <= EMBEDDING_LENGTH:
            return unit
        return self.step("Concat", unit, self.step("Slice", source, middle, last, axis), axis=1)


def join_models(bundle: Bundle) -> Any:
    """Put the models of a bundle together.

    Raises: BundleInvalid if they are written in versions of ONNX that do not go together.
    """
    models = load_models(bundle)
    joiner = GraphMerger()
    source = join_source(joiner, bundle, models) if IDENTITY_NAME in models else None
    if source is None:
        source = joiner.from_unit("source", bundle.tensor(GENERATOR_NAME, "source"))
    target = joiner.from_unit("target", bundle.tensor(GENERATOR_NAME, "target"))
    ports = {role: bundle.port(GENERATOR_NAME, role) for role in ("source", "target", "output")}
    joiner.place(models[GENERATOR_NAME], "generator_", {ports["source"]: source, ports["target"]: target})
    face = joiner.to_unit(f"generator_{ports['output']}", bundle.tensor(GENERATOR_NAME, "output"))
    if has_mask(bundle):
        mask = joiner.to_unit(f"generator_{bundle.port(GENERATOR_NAME, 'mask')}", bundle.tensor(GENERATOR_NAME, "mask"))
        face = joiner.step("Add", "target", joiner.step("Mul", mask, joiner.step("Sub", face, "target")))
    joiner.alias(face, "output")
    return assemble(bundle, joiner, models)


def join_source(joiner: GraphMerger, bundle: Bundle, models: dict[str, Any]) -> str:
    """Read the source's picture as the bundle's rule says; give the tensor that the generator takes."""
    rule = bundle.description.embedding
    face = joiner.from_unit("source", bundle.tensor(IDENTITY_NAME, "input"))
    joiner.place(models[IDENTITY_NAME], "identity_", {bundle.port(IDENTITY_NAME, "input"): face})
    source = f"identity_{bundle.port(IDENTITY_NAME, 'source')}"
    length = bundle.tensor(IDENTITY_NAME, "source").shape[-1]
    if rule.unit_before:
        source = joiner.normalize(source, int(length))
    if rule.matrix:
        source = joiner.step("MatMul", source, joiner.constant(load_matrix(bundle)))
    if rule.converter:
        converter = models[rule.converter]
        (inlet,), (outlet,) = converter.graph.input, converter.graph.output
        joiner.place(converter, "converter_", {inlet.name: source})
        source = joiner.step(
            "Reshape", f"converter_{outlet.name}", joiner.constant(np.array([-1, bundle.source_length]))
        )
    return joiner.normalize(source, bundle.source_length) if rule.unit_after else source


def load_models(bundle: Bundle) -> dict[str, Any]:
    """Load the models of a bundle in one version of ONNX, that of the newest, without what tells where they were made.

    Raises: BundleInvalid if one of them cannot be brought there.
    """
    names = [name for name in (GENERATOR_NAME, IDENTITY_NAME, bundle.description.embedding.converter) if name]
    models = {name: onnx.load(bundle.folder / name) for name in names if (bundle.folder / name).is_file()}
    newest = max(OLDEST_OPSET, *(opset_of(model) for model in models.values()))
    for name, model in models.items():
        if opset_of(model) != newest:
            try:
                models[name] = onnx.version_converter.convert_version(model, newest)
            except (RuntimeError, onnx.version_converter.ConvertError) as error:
                reason = " ".join(str(error).split())[:150]
                raise BundleInvalid(
                    f"{bundle.folder}/{name}: cannot be brought to opset {newest} ({reason}); export it so"
                ) from None
        for node in models[name].graph.node:
            del node.metadata_props[:]
    return models


def opset_of(model: Any) -> int:
    """Give the version of ONNX's own operators that a model is written in."""
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=OLDEST_OPSET)


def assemble(bundle: Bundle, joiner: GraphMerger, models: dict[str, Any]) -> Any:
    """Make a model of what was collected; it takes one face, as the program gives it."""
    size = bundle.description.size
    side = bundle.source_shape[-1] if bundle.description.source_is_picture else 112

    def port(name: str, pixels: int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, pixels, pixels])

    graph = helper.make_graph(
        joiner.nodes,
        bundle.description.name,
        [port("source", side), port("target", size)],
        [port("output", size)],
        joiner.constants,
    )
    opsets = {entry.domain: entry.version for model in models.values() for entry in model.opset_import}
    imports = [helper.make_opsetid(domain, version) for domain, version in sorted(opsets.items())]
    joined = helper.make_model(graph, opset_imports=imports, functions=joiner.functions)
    joined.ir_version = max(model.ir_version for model in models.values())
    onnx.checker.check_model(joined)
    return joined
