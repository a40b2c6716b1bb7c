"""Read and check ONNX files made elsewhere, search their graphs, and remove an exporter's metadata."""

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

# Protobuf reads no larger message; larger models store their weights in other files.
MAX_MODEL_BYTES = 2 * 1024**3 - 1
# Domains of the operators of ONNX, and of those that every build of ONNX Runtime has.
KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
# An encoder that normalizes its input does so in its first nodes.
FIRST_NODES = 8


@dataclass(frozen=True)
class ImportedModel:
    """A checked ONNX file: its path, its bytes, their sha256, and the parsed model."""

    path: Path
    data: bytes
    sha256: str
    proto: Any


def read_imported_model(file: str, *, max_bytes: int = MAX_MODEL_BYTES) -> ImportedModel:
    """Read and check an ONNX file.

    Raises: InputMissing if it cannot be read; ModelRejected if it is too large, is not valid ONNX, stores weights in
        other files, or has custom operators.
    """
    path = Path(file).expanduser()
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise ModelRejected(f"{path}: has {size} bytes, over the limit of {max_bytes}; save a smaller model")
        data = path.read_bytes()
    except OSError as error:
        raise InputMissing(f"{path}: cannot be read ({error.strerror}); check the path") from None
    try:
        proto = onnx.load_model_from_string(data)
    except (DecodeError, ValueError):
        raise ModelRejected(f"{path}: is not an ONNX model; save it with torch.onnx.export or onnx.save") from None
    external = sorted({location for tensor in list_tensors(proto) for location in external_files(tensor)})
    if external:
        raise ModelRejected(
            f"{path}: stores weights in other files ({', '.join(external[:3])}), which are not read; save one file "
            "(onnx.save_model with save_as_external_data=False)"
        )
    defined = {function.domain for function in proto.functions}
    custom = sorted(
        {f"{node.domain}.{node.op_type}" for node in list_nodes(proto) if node.domain not in KNOWN_DOMAINS | defined}
    )
    if custom:
        raise ModelRejected(
            f"{path}: has operators that are not part of ONNX ({', '.join(custom[:3])}); export it without them"
        )
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelRejected(f"{path}: is not valid ONNX ({reason}); export it again") from None
    return ImportedModel(path, data, hashlib.sha256(data).hexdigest(), proto)


def list_graphs(proto: Any) -> Iterator[Any]:
    """Yield the graph of a model, its functions, and the subgraphs of their nodes, each before its own subgraphs."""
    waiting = [proto.graph, *proto.functions]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                waiting += [attribute.g] if attribute.HasField("g") else []
                waiting += list(attribute.graphs)


def list_nodes(proto: Any) -> Iterator[Any]:
    """Yield every node of a model, subgraphs and functions included."""
    for graph in list_graphs(proto):
        yield from graph.node


def list_tensors(proto: Any) -> Iterator[Any]:
    """Yield every constant of a model: initializers and tensors in attributes."""
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


def external_files(tensor: Any) -> list[str]:
    """Return the files with the content of a constant; empty if the model contains it."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return []
    return [entry.value for entry in tensor.external_data if entry.key == "location"] or ["unnamed"]


def find_matrix(proto: Any, length: int) -> NDArray[np.float32] | None:
    """Find an unused initializer [512,`length`], float32: the matrix that converts embeddings to the model's source.

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


def normalizes_input(proto: Any) -> bool:
    """Return whether a model first subtracts and scales by constants, so that it takes 0..255, not -1..1.

    Source: insightface, python-package/insightface/model_zoo/arcface_onnx.py, which checks the first nodes as well.
    """
    first = {node.op_type for node in list(proto.graph.node)[:FIRST_NODES]}
    return "Sub" in first and bool(first & {"Mul", "Div"})


def remove_metadata(proto: Any) -> None:
    """Remove metadata and doc strings of a model in place: torch writes stack traces with source paths into them."""
    commented = [proto]
    for graph in list_graphs(proto):
        commented += [graph, *graph.node, *graph.value_info, *graph.input, *graph.output]
        commented += graph.initializer if isinstance(graph, onnx.GraphProto) else []
    for part in commented:
        # Inputs and outputs of a function are plain names.
        if not isinstance(part, str):
            part.ClearField("metadata_props")
            part.ClearField("doc_string")
