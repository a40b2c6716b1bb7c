"""The generator in fewer bits: float16 weights and arithmetic, or int8 with scales that crops have calibrated.

Inputs and outputs stay float32, so that the runtime need not care which of them it runs.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from fusionray.runtime.pixels import FloatArray

# What is quantized, tried in this order until the gate holds. The convolutions that read pixels and those that write
# them never are: they hold a thousandth of the weights, and eight bits in them cost 6 dB (docs/bundles.md).
LADDER: tuple[tuple[str, ...], ...] = (("Conv", "Gemm", "MatMul"), ("Conv",))
CALIBRATION_BATCH = 8


def write_float16(source: Path, target: Path) -> None:
    """Convert a model to float16 arithmetic; its inputs and outputs stay float32.

    onnxruntime.transformers.float16 writes models that do not load; onnxconverter-common's converter does, provided
    that no output is read inside of the graph as well.
    """
    from onnxconverter_common import float16

    model = separate_outputs(onnx.load(source))
    with warnings.catch_warnings():
        # It tells of every constant that is too small for float16; the gate judges what comes of it.
        warnings.simplefilter("ignore")
        narrow = float16.convert_float_to_float16(model, keep_io_types=True)
    onnx.checker.check_model(narrow)
    onnx.save(narrow, target)


def separate_outputs(model: Any) -> Any:
    """Give each output that nodes read as well a name of its own, so that a cast can stand before it."""
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
    """Quantize operators of a model, by what it computes on the calibration inputs (by name, [N,...]).

    Weights have a scale for each channel; operators say their scales by QDQ pairs, which every engine reads.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = target.with_suffix(".prepared.onnx")
    # It advises on the root logger what was done already.
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.ERROR)
    try:
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(target),
            Calibration(calibration),
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
    """Name the convolutions that read pictures first and those that write them last."""
    picture_inputs = {
        port.name for port in model.graph.input if len(port.type.tensor_type.shape.dim) == 4 and port.name in inputs
    }
    forward = walk_to_convolutions(model, picture_inputs, backwards=False)
    backward = walk_to_convolutions(model, {port.name for port in model.graph.output}, backwards=True)
    return sorted(forward | backward)


def walk_to_convolutions(model: Any, start: set[str], *, backwards: bool) -> set[str]:
    """Follow tensors through the graph and name the convolutions that are met first."""
    reached, met = set(start), set()
    nodes = reversed(model.graph.node) if backwards else model.graph.node
    # Nodes stand in the order in which they can be computed: one pass reaches everything.
    for node in nodes:
        entry, exit_ = (node.output, node.input) if backwards else (node.input, node.output)
        # The size of a picture is none of its values.
        if reached.isdisjoint(entry) or node.op_type == "Shape":
            continue
        if node.op_type == "Conv":
            met.add(node.name)
        else:
            reached.update(exit_)
    return met


class Calibration:
    """Hand calibration inputs to the quantizer, a few at a time."""

    def __init__(self, inputs: Mapping[str, FloatArray]) -> None:
        self.inputs = inputs
        self.batches = self.cut()

    def cut(self) -> Iterator[dict[str, FloatArray]]:
        count = len(next(iter(self.inputs.values())))
        for start in range(0, count, CALIBRATION_BATCH):
            yield {name: values[start : start + CALIBRATION_BATCH] for name, values in self.inputs.items()}

    def get_next(self) -> dict[str, FloatArray] | None:
        """Give the next inputs, None after the last."""
        return next(self.batches, None)
