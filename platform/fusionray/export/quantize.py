"""Quantize a generator: float16 weights and arithmetic, or int8 with scales calibrated on crops.

Inputs and outputs stay float32, so the runtime runs every variant in the same way.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from fusionray.runtime.pixels import FloatArray

# Operators to quantize, tried in this order until a variant passes its gate. Convolutions next to input and output
# pixels are never quantized: they have a thousandth of the weights, and int8 in them costs 6 dB (docs/bundles.md).
INT8_OPERATORS: tuple[tuple[str, ...], ...] = (("Conv", "Gemm", "MatMul"), ("Conv",))
CALIBRATION_BATCH = 8


def write_float16(source: Path, target: Path) -> None:
    """Convert a model to float16 arithmetic; its inputs and outputs stay float32.

    onnxruntime.transformers.float16 writes models that do not load. Those of onnxconverter-common load, provided that
    no node reads an output of the graph.
    """
    from onnxconverter_common import float16

    model = separate_outputs(onnx.load(source))
    with warnings.catch_warnings():
        # It warns of every constant that is too small for float16; the quality gate measures the effect.
        warnings.simplefilter("ignore")
        converted = float16.convert_float_to_float16(model, keep_io_types=True)
    onnx.checker.check_model(converted)
    onnx.save(converted, target)


def separate_outputs(model: Any) -> Any:
    """Add an Identity node for each graph output that nodes also read, so that a cast can be inserted before it."""
    for output in model.graph.output:
        readers = [node for node in model.graph.node if output.name in node.input]
        if not readers:
            continue
        inner = f"{output.name}_inside"
        for node in model.graph.node:
            rename(node.input, output.name, inner)
            rename(node.output, output.name, inner)
        model.graph.node.append(onnx.helper.make_node("Identity", [inner], [output.name]))
    return model


def rename(names: Any, old: str, new: str) -> None:
    for index, name in enumerate(names):
        if name == old:
            names[index] = new


def write_int8(source: Path, target: Path, calibration: Mapping[str, FloatArray], operators: Sequence[str]) -> None:
    """Quantize operators of a model to int8, calibrated on inputs float32 [N,...] by name.

    Weights have a scale per channel. Scales are stored as QDQ pairs, which every engine supports.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = target.with_suffix(".prepared.onnx")
    # The quantizer advises on the root logger to preprocess the model, which is done here.
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.ERROR)
    try:
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(target),
            CalibrationReader(calibration),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=list(operators),
            nodes_to_exclude=list_border_layers(onnx.load(prepared), tuple(calibration)),
        )
    finally:
        logging.getLogger().setLevel(level)
        prepared.unlink(missing_ok=True)


def list_border_layers(model: Any, inputs: Sequence[str]) -> list[str]:
    """Return the names of the first convolutions after picture inputs, and of the last ones before outputs."""
    picture_inputs = {
        port.name for port in model.graph.input if len(port.type.tensor_type.shape.dim) == 4 and port.name in inputs
    }
    forward = walk_to_convolutions(model, picture_inputs, backwards=False)
    backward = walk_to_convolutions(model, {port.name for port in model.graph.output}, backwards=True)
    return sorted(forward | backward)


def walk_to_convolutions(model: Any, start: set[str], *, backwards: bool) -> set[str]:
    """Follow tensors through the graph; return the names of the first convolutions on each path."""
    reached, convolutions = set(start), set()
    nodes = reversed(model.graph.node) if backwards else model.graph.node
    # Nodes are in topological order, so one pass is enough.
    for node in nodes:
        entry, exit_ = (node.output, node.input) if backwards else (node.input, node.output)
        # A Shape node depends on the size of a picture, not on its values.
        if reached.isdisjoint(entry) or node.op_type == "Shape":
            continue
        if node.op_type == "Conv":
            convolutions.add(node.name)
        else:
            reached.update(exit_)
    return convolutions


class CalibrationReader:
    """Gives calibration inputs to the quantizer in batches (onnxruntime's CalibrationDataReader)."""

    def __init__(self, inputs: Mapping[str, FloatArray]) -> None:
        self.inputs = inputs
        self.batches = self.iterate_batches()

    def iterate_batches(self) -> Iterator[dict[str, FloatArray]]:
        count = len(next(iter(self.inputs.values())))
        for start in range(0, count, CALIBRATION_BATCH):
            yield {name: values[start : start + CALIBRATION_BATCH] for name, values in self.inputs.items()}

    def get_next(self) -> dict[str, FloatArray] | None:
        """Return the next batch by input name, None after the last."""
        return next(self.batches, None)
