"""Find the roles of a graph's inputs and outputs: from the options, from their shapes, or from their names.

A port is an input or output of a graph, identified by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime

from fusionray.bundle.description import EMBEDDING_LENGTH, IDENTITY_SIZE
from fusionray.errors import ModelRejected
from fusionray.export.import_layouts import ImportConfig
from fusionray.export.onnx_graphs import ImportedModel
from fusionray.onnx_errors import ONNX_ERRORS
from fusionray.runtime.engines.session import ERRORS_ONLY

Shape = tuple[int | str, ...]
FLOAT32 = "tensor(float)"


@dataclass(frozen=True)
class GeneratorPorts:
    """Names of a face swapper's ports by role; `size` of its target crop; `batch` is None if dynamic.

    `source_shape` is [N,L] of an embedding or [N,3,s,s] of a picture; all but N are numbers.
    """

    source: str
    target: str
    output: str
    mask: str | None
    size: int
    batch: int | None
    source_shape: Shape


@dataclass(frozen=True)
class EncoderPorts:
    """Names of an identity encoder's ports; `batch` is None if dynamic; `length` of its embedding."""

    input: str
    output: str
    batch: int | None
    length: int


def find_generator_ports(model: ImportedModel, config: ImportConfig) -> GeneratorPorts:
    """Find the roles of a face swapper's ports, its sizes and its batch; runs the model on zeros.

    Raises: ModelRejected if the model is of another kind, or if a role or size is ambiguous, naming the option to set.
    """
    session = open_unoptimised(model)
    inputs = {port.name: tuple(port.shape) for port in session.get_inputs()}
    check_inputs(model, session.get_inputs(), count=2)
    source, target = find_input_roles(model, inputs, config)
    size = resolve_size(model, inputs[target], config.size, "target", "--size")
    shape = inputs[source]
    if len(shape) == 4:
        side = resolve_size(model, shape, config.source_size, "source", "source_size=...")
        source_shape: Shape = ("N", 3, side, side)
    else:
        source_shape = ("N", shape[1] if isinstance(shape[1], int) else EMBEDDING_LENGTH)
    kind = "picture" if len(shape) == 4 else "embedding"
    if config.source_kind not in (None, kind):
        raise ModelRejected(
            f"{model.path}: '{source}' is {list(shape)}, a source that is {kind}, not {config.source_kind}"
        )
    fixed = [shape[0] for shape in inputs.values() if isinstance(shape[0], int)]
    batch = fixed[0] if fixed else None
    rows = batch or 1
    row_shapes = {source: tuple(map(int, source_shape[1:])), target: (3, size, size)}
    outputs = run_once(model, session, row_shapes, rows)
    output, mask = find_output_roles(model, outputs, config, size)
    for port in session.get_outputs():
        # If an output has a fixed batch, nodes before it may depend on that number.
        if batch is None and port.name in (output, mask) and port.shape and isinstance(port.shape[0], int):
            batch = port.shape[0]
    if batch is None and not supports_batches(session, row_shapes):
        batch = 1
    return GeneratorPorts(source, target, output, mask, size, batch, source_shape)


def find_encoder_ports(model: ImportedModel) -> EncoderPorts:
    """Find the ports, the batch and the embedding length of an identity encoder; runs the model on zeros.

    Raises: ModelRejected unless it has one input of faces of 112 px and one output of embeddings.
    """
    session = open_unoptimised(model)
    check_inputs(model, session.get_inputs(), count=1)
    (port,) = session.get_inputs()
    resolve_size(model, tuple(port.shape), IDENTITY_SIZE, port.name, "an encoder for faces of 112 px")
    batch = port.shape[0] if isinstance(port.shape[0], int) else None
    row_shapes = {port.name: (3, IDENTITY_SIZE, IDENTITY_SIZE)}
    found = run_once(model, session, row_shapes, batch or 1)
    if batch is None and not supports_batches(session, row_shapes):
        batch = 1
    embeddings = {name: shape for name, shape in found.items() if len(shape) == 2}
    if len(embeddings) != 1:
        raise ModelRejected(
            f"{model.path}: gives {', '.join(f'{name} {list(shape)}' for name, shape in found.items())}, not one "
            "embedding; name an ArcFace encoder"
        )
    (name, shape), *_ = embeddings.items()
    return EncoderPorts(port.name, name, batch, shape[1])


def open_unoptimised(model: ImportedModel) -> Any:
    """Open a session on the CPU without graph optimisation, which would take longer than the one or two runs here."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(model.data, options, providers=["CPUExecutionProvider"])
    except ONNX_ERRORS as error:
        raise ModelRejected(
            f"{model.path}: ONNX Runtime cannot load it ({' '.join(str(error).split())[:200]})"
        ) from None


def run_once(
    model: ImportedModel, session: Any, row_shapes: Mapping[str, tuple[int, ...]], rows: int
) -> dict[str, tuple[int, ...]]:
    """Run a model on `rows` rows of zeros; return the shapes of its outputs."""
    try:
        values = session.run(None, {name: np.zeros((rows, *shape), np.float32) for name, shape in row_shapes.items()})
    except ONNX_ERRORS as error:
        raise ModelRejected(f"{model.path}: did not run on zeros ({' '.join(str(error).split())[:200]})") from None
    return {port.name: tuple(value.shape) for port, value in zip(session.get_outputs(), values, strict=True)}


def supports_batches(session: Any, row_shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether a graph with a dynamic batch runs on two rows; some contain a fixed batch of 1."""
    rows = 2
    try:
        values = session.run(None, {name: np.zeros((rows, *shape), np.float32) for name, shape in row_shapes.items()})
    except ONNX_ERRORS:
        return False
    return all(value.shape[:1] == (rows,) for value in values)


def check_inputs(model: ImportedModel, ports: Any, count: int) -> None:
    """Check the number of inputs, that they are float32, and that each is an embedding or a picture."""
    text = ", ".join(f"{port.name} {port.type} {port.shape}" for port in ports)
    if len(ports) != count:
        raise ModelRejected(
            f"{model.path}: has {len(ports)} inputs ({text}), not {count}; only face swappers and encoders are imported"
        )
    for port in ports:
        if port.type != FLOAT32:
            raise ModelRejected(f"{model.path}: '{port.name}' is {port.type}; export it with float32 inputs")
        channels = port.shape[1] if len(port.shape) == 4 else 3
        if len(port.shape) not in (2, 4) or (isinstance(channels, int) and channels != 3):
            raise ModelRejected(f"{model.path}: '{port.name}' is {port.shape}, neither [N, L] nor [N, 3, s, s]")


def find_input_roles(model: ImportedModel, inputs: Mapping[str, Shape], config: ImportConfig) -> tuple[str, str]:
    """Return the names of the source and the target input: from the options, else by shape, else by name."""
    for role, name in (("source", config.ports.source), ("target", config.ports.target)):
        if name is not None and name not in inputs:
            raise ModelRejected(f"{model.path}: ports.{role}={name}, but its inputs are {', '.join(inputs)}")
    first, second = inputs
    other = {first: second, second: first}
    if config.ports.source or config.ports.target:
        source = config.ports.source or other[str(config.ports.target)]
        return source, config.ports.target or other[source]
    rows = [name for name, shape in inputs.items() if len(shape) == 2]
    if len(rows) == 1:
        return rows[0], other[rows[0]]
    for role in ("source", "target"):
        named = [name for name in inputs if role in name.lower()]
        if len(named) == 1:
            return (named[0], other[named[0]]) if role == "source" else (other[named[0]], named[0])
    raise ModelRejected(
        f"{model.path}: which of {first} and {second} is the source? Set ports.source={first} or {second}"
    )


def find_output_roles(
    model: ImportedModel, outputs: Mapping[str, tuple[int, ...]], config: ImportConfig, size: int
) -> tuple[str, str | None]:
    """Return the name of the output with the picture, and of that with the mask, if there is one."""
    text = ", ".join(f"{name} {list(shape)}" for name, shape in outputs.items())
    names: list[str | None] = []
    for role, configured, channels in (("output", config.ports.output, 3), ("mask", config.ports.mask, 1)):
        fitting = [name for name, shape in outputs.items() if shape[1:] == (channels, size, size)]
        if configured is not None and configured not in fitting:
            raise ModelRejected(f"{model.path}: ports.{role}={configured}, but its outputs are {text}")
        if configured is None and len(fitting) > 1:
            raise ModelRejected(f"{model.path}: which of {', '.join(fitting)} is the {role}? Set ports.{role}=NAME")
        names.append(configured or (fitting[0] if fitting else None))
    output, mask = names
    if output is None:
        raise ModelRejected(f"{model.path}: gives {text}, no picture of {size} px like its target")
    return output, mask


def resolve_size(model: ImportedModel, shape: Shape, configured: int | None, role: str, option: str) -> int:
    """Return the side of a square picture in pixels: from the graph, or from the options if the graph leaves it open.

    Raises: ModelRejected if neither gives it, they differ, or the shape is not that of a square picture.
    """
    sides = [side for side in shape[2:] if isinstance(side, int)]
    known = set(sides) | ({configured} if configured else set())
    if not known:
        raise ModelRejected(f"{model.path}: leaves the size of '{role}' open; set it with {option}")
    if len(known) > 1 or len(shape) != 4:
        raise ModelRejected(
            f"{model.path}: '{role}' is {list(shape)}, which does not fit {configured or 'a square'} ({option})"
        )
    return known.pop()
