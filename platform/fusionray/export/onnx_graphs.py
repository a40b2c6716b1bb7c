"""ONNX files that were made elsewhere: read once, bounded, checked, and searched for what a bundle must say of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from fusionray.bundle.description import EMBEDDING_LENGTH
from fusionray.errors import InputMissing, ModelRejected

# Protobuf itself reads no larger message; what is larger keeps its weights in other files.
MAX_MODEL_BYTES = 2 * 1024**3 - 1
# The operators that ONNX defines, and those that every ONNX Runtime brings along.
KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
# How far from the input an encoder subtracts and scales by itself, if it does.
PREPARING_NODES = 8


@dataclass(frozen=True)
class ImportedModel:
    """A model as it came: its path, the very bytes that were checked, their sha256, and the graph in them."""

    path: Path
    data: bytes
    sha256: str
    proto: Any


def read_imported_model(place: str, *, max_bytes: int = MAX_MODEL_BYTES) -> ImportedModel:
    """Read and check an ONNX file.

    Raises: InputMissing if it is not there; ModelRejected if it is too large, is no valid ONNX, keeps weights in other
        files, or has operators of its own.
    """
    path = Path(place).expanduser()
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise ModelRejected(
                f"{path}: has {size} bytes, more than the {max_bytes} that are read; save a smaller one"
            )
        data = path.read_bytes()
    except OSError as error:
        raise InputMissing(f"{path}: cannot be read ({error.strerror}); check the path") from None
    try:
        proto = onnx.load_model_from_string(data)
    except (DecodeError, ValueError):
        raise ModelRejected(f"{path}: is not an ONNX model; save it with torch.onnx.export or onnx.save") from None
    external = sorted({place for tensor in list_tensors(proto) for place in external_places(tensor)})
    if external:
        raise ModelRejected(
            f"{path}: keeps weights in other files ({', '.join(external[:3])}), which are not read; save one file "
            "(onnx.save_model with save_as_external_data=False)"
        )
    own = {function.domain for function in proto.functions}
    strange = sorted(
        {f"{node.domain}.{node.op_type}" for node in list_nodes(proto) if node.domain not in KNOWN_DOMAINS | own}
    )
    if strange:
        raise ModelRejected(
            f"{path}: needs operators that are not part of ONNX ({', '.join(strange[:3])}); export without"
        )
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelRejected(f"{path}: is not valid ONNX ({reason}); export it again") from None
    return ImportedModel(path, data, hashlib.sha256(data).hexdigest(), proto)


def list_graphs(proto: Any) -> Iterator[Any]:
    """List the graph of a model and those inside its nodes, each before those that it holds; functions too."""
    waiting = [proto.graph, *proto.functions]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                waiting += [attribute.g] if attribute.HasField("g") else []
                waiting += list(attribute.graphs)


def list_nodes(proto: Any) -> Iterator[Any]:
    """List every node of a model."""
    for graph in list_graphs(proto):
        yield from graph.node


def list_tensors(proto: Any) -> Iterator[Any]:
    """List every constant of a model, wherever it stands."""
    for graph in list_graphs(proto):
        if isinstance(graph, onnx.GraphProto):
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors


def external_places(tensor: Any) -> list[str]:
    """List the files in which a constant is kept, none for one that is in the model."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return []
    return [entry.value for entry in tensor.external_data if entry.key == "location"] or ["unnamed"]


def find_matrix(proto: Any, length: int) -> NDArray[np.float32] | None:
    """Find the matrix [512,`length`] that a model carries without using it: the map that its source has to go through.

    Source: insightface, python-package/insightface/model_zoo/inswapper.py, where it is the last initializer.
    """
    used = {name for node in list_nodes(proto) for name in node.input}
    used |= {output.name for output in proto.graph.output}
    unused = [
        tensor
        for tensor in proto.graph.initializer
        if tensor.name not in used
        and list(tensor.dims) == [EMBEDDING_LENGTH, length]
        and tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    ]
    return onnx.numpy_helper.to_array(unused[-1]).astype(np.float32) if unused else None


def prepares_pixels(proto: Any) -> bool:
    """Tell whether a model begins by subtracting and scaling with constants: then it takes 0..255, not -1..1.

    Source: insightface, python-package/insightface/model_zoo/arcface_onnx.py, which looks at the first nodes likewise.
    """
    first = {node.op_type for node in list(proto.graph.node)[:PREPARING_NODES]}
    return "Sub" in first and bool(first & {"Mul", "Div"})
