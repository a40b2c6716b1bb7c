"""Merge identity encoder, embedding conversion and generator of a bundle into one ONNX graph.

Inputs `source` [1,3,s,s] and `target` [1,3,C,C], output `output` [1,3,C,C], all RGB in 0..1. C is a multiple of the
generator's size: its target is the crop reduced by area averaging, and its output and mask are enlarged again. So where
the mask is 0, the output is the target at full resolution.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import EMBEDDING_LENGTH, GENERATOR_NAME, IDENTITY_NAME, TensorDescription
from fusionray.errors import BundleInvalid
from fusionray.export.onnx_graphs import remove_metadata
from fusionray.runtime.engines.signature import has_mask
from fusionray.runtime.pixels import value_range
from fusionray.runtime.source_encoding import load_matrix

# Since this version, Slice, Clip and ReduceSum take their parameters as inputs, as the added nodes do.
OLDEST_OPSET = 13
SMALLEST_LENGTH = 1e-12
# The cubic kernel of OpenCV, which enlarges crops when the runtime pastes them.
CUBIC_COEFFICIENT = -0.75


class GraphMerger:
    """Collects the nodes, constants and functions of a graph. Methods take and return names of tensors."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.functions: list[Any] = []

    def add_constant(self, value: NDArray[Any]) -> str:
        """Add a constant; return its name."""
        name = f"joint_constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def add_node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        name = f"joint_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=f"{name}_{operator}", **attributes))
        return name

    def add_alias(self, old: str, new: str) -> None:
        """Make a tensor available under another name."""
        self.nodes.append(helper.make_node("Identity", [old], [new], name=f"joint_{new}"))

    def add_model(self, model: Any, prefix: str, inputs: dict[str, str]) -> None:
        """Add a model, with a prefix before the names of its tensors; `inputs` maps its inputs to tensors."""
        prefixed = onnx.compose.add_prefix(model, prefix)
        for port, tensor in inputs.items():
            self.add_alias(tensor, f"{prefix}{port}")
        self.nodes += list(prefixed.graph.node)
        self.constants += list(prefixed.graph.initializer)
        self.functions += list(prefixed.functions)

    def reorder_channels(self, tensor: str, described: TensorDescription) -> str:
        """Convert RGB to the channel order of a model, or back."""
        if described.order == "rgb":
            return tensor
        return self.add_node("Gather", tensor, self.add_constant(np.array([2, 1, 0])), axis=1)

    def from_unit(self, tensor: str, described: TensorDescription) -> str:
        """Convert RGB in 0..1 to the value range and channel order of a model."""
        black_C11, span_C11 = value_range(described)
        scaled = self.add_node("Mul", self.reorder_channels(tensor, described), self.add_constant(span_C11))
        return self.add_node("Add", scaled, self.add_constant(black_C11))

    def to_unit(self, tensor: str, described: TensorDescription) -> str:
        """Convert a picture to RGB in 0..1, or a mask to 0..1, from the value range of a model; clip the result."""
        black_C11, span_C11 = value_range(described)
        channels = 1 if described.meaning == "mask" else 3
        shifted = self.add_node("Sub", tensor, self.add_constant(black_C11[:channels]))
        scaled = self.add_node("Div", shifted, self.add_constant(span_C11[:channels]))
        return self.clip(self.reorder_channels(scaled, described))

    def reduce(self, tensor: str, factor: int) -> str:
        """Reduce a picture by area averaging."""
        if factor == 1:
            return tensor
        return self.add_node("AveragePool", tensor, kernel_shape=[factor, factor], strides=[factor, factor])

    def enlarge(self, tensor: str, factor: int, mode: Literal["cubic", "linear"]) -> str:
        """Enlarge a picture or mask in 0..1, and clip the overshoot of the cubic kernel."""
        if factor == 1:
            return tensor
        scales = self.add_constant(np.array([1, 1, factor, factor], np.float32))
        kernel = {"cubic_coeff_a": CUBIC_COEFFICIENT} if mode == "cubic" else {}
        return self.clip(self.add_node("Resize", tensor, "", scales, mode=mode, **kernel))

    def clip(self, tensor: str) -> str:
        """Clip to 0..1."""
        bounds = (self.add_constant(np.array(value, np.float32)) for value in (0.0, 1.0))
        return self.add_node("Clip", tensor, *bounds)

    def normalize(self, source: str, length: int) -> str:
        """Scale the embedding, the first 512 values of a source, to unit length."""
        first, middle, axis = (self.add_constant(np.array([n])) for n in (0, EMBEDDING_LENGTH, 1))
        embedding = self.add_node("Slice", source, first, middle, axis)
        squares = self.add_node("ReduceSum", self.add_node("Mul", embedding, embedding), axis, keepdims=1)
        norm = self.add_node(
            "Max", self.add_node("Sqrt", squares), self.add_constant(np.array(SMALLEST_LENGTH, np.float32))
        )
        unit = self.add_node("Div", embedding, norm)
        if length <= EMBEDDING_LENGTH:
            return unit
        last = self.add_constant(np.array([length]))
        return self.add_node("Concat", unit, self.add_node("Slice", source, middle, last, axis), axis=1)


def merge_models(bundle: Bundle, crop_size: int) -> Any:
    """Merge the models of a bundle into one ONNX model, which takes one face at a time.

    `crop_size` is the side C of the target crop, a multiple of the generator's size.

    Raises: BundleInvalid if a model cannot be converted to the newest opset among them.
    """
    models = load_models(bundle)
    merger = GraphMerger()
    factor = crop_size // bundle.description.size
    source = add_source_encoder(merger, bundle, models) if IDENTITY_NAME in models else None
    if source is None:
        source = merger.from_unit("source", bundle.tensor(GENERATOR_NAME, "source"))
    target = merger.from_unit(merger.reduce("target", factor), bundle.tensor(GENERATOR_NAME, "target"))
    ports = {role: bundle.port(GENERATOR_NAME, role) for role in ("source", "target", "output")}
    merger.add_model(models[GENERATOR_NAME], "generator_", {ports["source"]: source, ports["target"]: target})
    face = merger.to_unit(f"generator_{ports['output']}", bundle.tensor(GENERATOR_NAME, "output"))
    face = merger.enlarge(face, factor, "cubic")
    if has_mask(bundle):
        mask = merger.to_unit(f"generator_{bundle.port(GENERATOR_NAME, 'mask')}", bundle.tensor(GENERATOR_NAME, "mask"))
        mask = merger.enlarge(mask, factor, "linear")
        face = merger.add_node("Add", "target", merger.add_node("Mul", mask, merger.add_node("Sub", face, "target")))
    merger.add_alias(face, "output")
    return build_model(bundle, merger, models, crop_size)


def add_source_encoder(merger: GraphMerger, bundle: Bundle, models: dict[str, Any]) -> str:
    """Add the encoder and the bundle's embedding rule; return the name of the encoded source."""
    rule = bundle.description.embedding
    face = merger.from_unit("source", bundle.tensor(IDENTITY_NAME, "input"))
    merger.add_model(models[IDENTITY_NAME], "identity_", {bundle.port(IDENTITY_NAME, "input"): face})
    source = f"identity_{bundle.port(IDENTITY_NAME, 'source')}"
    length = bundle.tensor(IDENTITY_NAME, "source").shape[-1]
    if rule.unit_before:
        source = merger.normalize(source, int(length))
    if rule.matrix:
        source = merger.add_node("MatMul", source, merger.add_constant(load_matrix(bundle)))
    if rule.converter:
        converter = models[rule.converter]
        (inlet,), (outlet,) = converter.graph.input, converter.graph.output
        merger.add_model(converter, "converter_", {inlet.name: source})
        source = merger.add_node(
            "Reshape", f"converter_{outlet.name}", merger.add_constant(np.array([-1, bundle.source_length]))
        )
    return merger.normalize(source, bundle.source_length) if rule.unit_after else source


def load_models(bundle: Bundle) -> dict[str, Any]:
    """Load the models of a bundle, converted to the newest opset among them, without metadata.

    Raises: BundleInvalid if a model cannot be converted.
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
                    f"{bundle.folder}/{name}: cannot be converted to opset {newest} ({reason}); export it with that"
                ) from None
        remove_metadata(models[name])
    return models


def opset_of(model: Any) -> int:
    """Return the version of ONNX's own operators in a model."""
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=OLDEST_OPSET)


def build_model(bundle: Bundle, merger: GraphMerger, models: dict[str, Any], crop_size: int) -> Any:
    """Build the model of the collected nodes, with a batch of one face, as FaceFusion passes it."""
    side = bundle.source_shape[-1] if bundle.description.source_is_picture else 112

    def port(name: str, pixels: int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, pixels, pixels])

    graph = helper.make_graph(
        merger.nodes,
        bundle.description.name,
        [port("source", side), port("target", crop_size)],
        [port("output", crop_size)],
        merger.constants,
    )
    opsets = {entry.domain: entry.version for model in models.values() for entry in model.opset_import}
    imports = [helper.make_opsetid(domain, version) for domain, version in sorted(opsets.items())]
    merged = helper.make_model(graph, opset_imports=imports, functions=merger.functions)
    merged.ir_version = max(model.ir_version for model in models.values())
    onnx.checker.check_model(merged)
    return merged
