"""Which input and output of a graph plays which role: by its shape, by its name, or as it was said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from fusionray.bundle.description import EMBEDDING_LENGTH, IDENTITY_SIZE
from fusionray.errors import ModelRejected
from fusionray.export.import_layouts import ImportConfig
from fusionray.export.onnx_graphs import ImportedModel

Shape = tuple[int | str, ...]
# ONNX Runtime's errors share no base class of their own.
RUN_ERRORS = (
    ort_state.EPFail,
    ort_state.Fail,
    ort_state.InvalidArgument,
    ort_state.InvalidGraph,
    ort_state.InvalidProtobuf,
    ort_state.NotImplemented,
    ort_state.RuntimeException,
)
FLOAT32 = "tensor(float)"
ERRORS_ONLY = 3


@dataclass(frozen=True)
class GeneratorPorts:
    """The names that roles have in a graph. `size` of the target's crop; `batch` None where any number will do.

    `source_shape` is [N,L] of an embedding or [N,3,s,s] of a picture, in numbers behind N.
    """

    source: str
    target: str
    output: str
    mask: str | None
    size: int
    batch: int | None
    source_shape: Shape


def find_generator_ports(model: ImportedModel, config: ImportConfig) -> GeneratorPorts:
    """Find out which input is the source and which output the picture, and try the model on zeros.

    Raises: ModelRejected naming the option that says what the graph does not.
    """
    session = open_session(model)
    inputs = {port.name: tuple(port.shape) for port in session.get_inputs()}
    check_inputs(model, session.get_inputs(), count=2)
    source, target = tell_inputs_apart(model, inputs, config)
    size = settle_size(model, inputs[target], config.size, "target", "--size")
    shape = inputs[source]
    if len(shape) == 4:
        side = settle_size(model, shape, config.source_size, "source", "source_size=...")
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
    inner = {source: tuple(map(int, source_shape[1:])), target: (3, size, size)}
    outputs = run_once(model, session, inner, rows)
    output, mask = tell_outputs_apart(model, outputs, config, size)
    for port in session.get_outputs():
        # Where an output was traced with a number, the graph behind it may hold that number anywhere.
        if batch is None and port.name in (output, mask) and port.shape and isinstance(port.shape[0], int):
            batch = port.shape[0]
    if batch is None and not takes_many(session, inner):
        batch = 1
    return GeneratorPorts(source, target, output, mask, size, batch, source_shape)


def probe_identity(model: ImportedModel) -> tuple[int | None, str, str, int]:
    """Find out an encoder's batch (None where any will do), its input, its output, and how long an embedding is.

    Raises: ModelRejected if it does not look like an ArcFace encoder.
    """
    session = open_session(model)
    check_inputs(model, session.get_inputs(), count=1)
    (port,) = session.get_inputs()
    settle_size(model, tuple(port.shape), IDENTITY_SIZE, port.name, "an encoder for faces of 112 px")
    batch = port.shape[0] if isinstance(port.shape[0], int) else None
    inner = {port.name: (3, IDENTITY_SIZE, IDENTITY_SIZE)}
    found = run_once(model, session, inner, batch or 1)
    if batch is None and not takes_many(session, inner):
        batch = 1
    embeddings = {name: shape for name, shape in found.items() if len(shape) == 2}
    if len(embeddings) != 1:
        raise ModelRejected(
            f"{model.path}: gives {', '.join(f'{name} {list(shape)}' for name, shape in found.items())}, not one "
            "embedding; bring an ArcFace encoder"
        )
    (name, shape), *_ = embeddings.items()
    return batch, port.name, name, shape[1]


def open_session(model: ImportedModel) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    # It runs once or twice here: optimising the graph would take longer than that.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(model.data, options, providers=["CPUExecutionProvider"])
    except RUN_ERRORS as error:
        raise ModelRejected(
            f"{model.path}: ONNX Runtime cannot load it ({' '.join(str(error).split())[:200]})"
        ) from None


def run_once(
    model: ImportedModel, session: Any, inner: Mapping[str, tuple[int, ...]], rows: int
) -> dict[str, tuple[int, ...]]:
    """Run a model on so many rows of zeros of the inner shapes; give the shapes that its outputs have."""
    try:
        values = session.run(None, {name: np.zeros((rows, *shape), np.float32) for name, shape in inner.items()})
    except RUN_ERRORS as error:
        raise ModelRejected(f"{model.path}: did not run on zeros ({' '.join(str(error).split())[:200]})") from None
    return {port.name: tuple(value.shape) for port, value in zip(session.get_outputs(), values, strict=True)}


def takes_many(session: Any, inner: Mapping[str, tuple[int, ...]]) -> bool:
    """Tell whether a graph that says nothing of its batch runs on more rows than one; some hold the 1 inside."""
    rows = 2
    try:
        values = session.run(None, {name: np.zeros((rows, *shape), np.float32) for name, shape in inner.items()})
    except RUN_ERRORS:
        return False
    return all(value.shape[:1] == (rows,) for value in values)


def check_inputs(model: ImportedModel, ports: Any, count: int) -> None:
    """Refuse other numbers of inputs, other types than float32, and what is neither rows nor pictures."""
    text = ", ".join(f"{port.name} {port.type} {port.shape}" for port in ports)
    if len(ports) != count:
        raise ModelRejected(
            f"{model.path}: has {len(ports)} inputs ({text}), not {count}; this is another kind of model"
        )
    for port in ports:
        if port.type != FLOAT32:
            raise ModelRejected(f"{model.path}: '{port.name}' is {port.type}; convert it with float32 inputs kept")
        channels = port.shape[1] if len(port.shape) == 4 else 3
        if len(port.shape) not in (2, 4) or (isinstance(channels, int) and channels != 3):
            raise ModelRejected(f"{model.path}: '{port.name}' is {port.shape}, neither [N, L] nor [N, 3, s, s]")


def tell_inputs_apart(model: ImportedModel, inputs: Mapping[str, Shape], config: ImportConfig) -> tuple[str, str]:
    """Give the names of source and target: as said, by shape, or by their names."""
    for role, said in (("source", config.ports.source), ("target", config.ports.target)):
        if said is not None and said not in inputs:
            raise ModelRejected(f"{model.path}: ports.{role}={said}, but its inputs are {', '.join(inputs)}")
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
        f"{model.path}: which of {first} and {second} is the source? Say ports.source={first} or {second}"
    )


def tell_outputs_apart(
    model: ImportedModel, outputs: Mapping[str, tuple[int, ...]], config: ImportConfig, size: int
) -> tuple[str, str | None]:
    """Give the names of the picture and, if there is one, the mask."""
    text = ", ".join(f"{name} {list(shape)}" for name, shape in outputs.items())
    names: list[str | None] = []
    for role, said, channels in (("output", config.ports.output, 3), ("mask", config.ports.mask, 1)):
        fitting = [name for name, shape in outputs.items() if shape[1:] == (channels, size, size)]
        if said is not None and said not in fitting:
            raise ModelRejected(f"{model.path}: ports.{role}={said}, but its outputs are {text}")
        if said is None and len(fitting) > 1:
            raise ModelRejected(f"{model.path}: which of {', '.join(fitting)} is the {role}? Say ports.{role}=NAME")
        names.append(said or (fitting[0] if fitting else None))
    output, mask = names
    if output is None:
        raise ModelRejected(f"{model.path}: gives {text}, no picture of {size} px as its target is")
    return output, mask


def settle_size(model: ImportedModel, shape: Shape, said: int | None, role: str, option: str) -> int:
    """Give the side of a square picture: the model's own, or the one that was said where it is open."""
    sides = [side for side in shape[2:] if isinstance(side, int)]
    known = set(sides) | ({said} if said else set())
    if not known:
        raise ModelRejected(f"{model.path}: leaves the size of '{role}' open; say it with {option}")
    if len(known) > 1 or len(shape) != 4:
        raise ModelRejected(
            f"{model.path}: '{role}' is {list(shape)}, which does not fit {said or 'a square'} ({option})"
        )
    return known.pop()
