"""What the commands of a commit leave, as values by name, and in what the values of two commits differ.

Files are read by their formats (JSON, Parquet, tables of tensors, ONNX): nothing of the package is imported.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

Values = dict[str, Any]
"""Arrays, texts, bytes and numbers by name."""

# Patterns of tensors' names and of metadata keys that a refactoring renamed, each with what it was: applied to both.
NAMES: dict[str, str] = {
    r"\bposition\.partitions\b": "position.cuts",
    r"\bmetadata\.identity_encoder\b": "identity_encoder",
}
# Keys that a refactoring added on purpose: the first commit may lack them.
ADDED = ("task",)
# Keys without a value that a refactoring took away on purpose: the second commit may lack them.
REMOVED = ("attribute_reader",)
# Fingerprints of settings (whose names may change), what varies with the clock, names of files.
PASSING = ("fingerprint", "code_version", "config.", "seconds", "metrics.images_per_second", "files.", "table")
# Types that numpy lacks are compared as plain bits.
DTYPES = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


def read_shards(folder: Path) -> Values:
    """Hash the shards, and read what the manifest says of them."""
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.parquet"))}
    return hashes | read_json(folder / "manifest.json")


def read_figures(run: Path) -> Values:
    """Read losses, evaluation, counters and position in the data from the last checkpoint of a run."""
    return read_json(sorted(run.glob("checkpoint-*/info.json"))[-1])


def read_json(path: Path) -> Values:
    flat = flatten(json.loads(path.read_text()))
    return {rename(key): value for key, value in flat.items() if not key.startswith(PASSING)}


def flatten(tree: Any, prefix: str = "") -> Values:
    """Name every leaf of a JSON tree by its path: a.b.0."""
    if not isinstance(tree, dict | list):
        return {prefix.removesuffix("."): tree}
    flat: Values = {}
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        flat |= flatten(value, f"{prefix}{key}.")
    return flat


def read_tensors(run: Path) -> Values:
    """Put the tensors of the last checkpoint of a run together from their parts; their types stand in their names."""
    table = sorted(run.glob("checkpoint-*/*.tensors.json"))[-1]
    tensors = {}
    for name, entry in sorted(json.loads(table.read_text())["tensors"].items()):
        tensor = np.empty(entry["shape"], DTYPES.get(entry["dtype"], entry["dtype"]))
        for part in entry["parts"]:
            file, sizes = table.with_name(part["file"]), part["sizes"]
            box = tuple(slice(at, at + size) for at, size in zip(part["offsets"], sizes, strict=True))
            tensor[box] = np.fromfile(file, tensor.dtype, math.prod(sizes), offset=part["start"]).reshape(sizes)
        tensors[f"{rename(name)} ({entry['dtype']})"] = tensor
    return tensors


def rename(name: str) -> str:
    for pattern, former in NAMES.items():
        name = re.sub(pattern, former, name)
    return name


def compute_onnx(path: Path) -> Values:
    """Run a model on fixed random rows, on one thread of the CPU; a model that is not there computes nothing."""
    if not path.is_file():
        return {}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    random, rows = np.random.default_rng(0), {}
    for port in session.get_inputs():
        shape = [side if isinstance(side, int) else 3 for side in port.shape]
        rows[port.name] = random.uniform(-1, 1, shape).astype(np.float32)
    return dict(zip((port.name for port in session.get_outputs()), session.run(None, rows), strict=True))


def list_differences(wanted: Values, found: Values) -> list[str]:
    """Say in what two sets of values differ; two that are empty show nothing, so they are not equal."""
    lost = [name for name in wanted if name not in found and not (name in REMOVED and wanted[name] is None)]
    lone = [f"{name}: only the first commit has it" for name in lost]
    lone += [f"{name}: only the second commit has it" for name in found if name not in wanted and name not in ADDED]
    said = {name: describe_difference(value, found[name]) for name, value in wanted.items() if name in found}
    empty = [] if wanted or found else ["there is nothing to compare"]
    return [*empty, *lone, *(f"{name}: {difference}" for name, difference in said.items() if difference)]


def describe_difference(wanted: Any, found: Any) -> str:
    """Say in what two values differ; nothing if they are the same to the last bit."""
    if isinstance(wanted, np.ndarray):
        if (wanted.shape, wanted.dtype) != (found.shape, found.dtype):
            return f"{wanted.dtype} {list(wanted.shape)} -> {found.dtype} {list(found.shape)}"
        # As bits: -0 is not 0, and a NaN is itself.
        bits = [np.ascontiguousarray(array).view(f"u{array.itemsize}") for array in (wanted, found)]
        count = np.count_nonzero(bits[0] != bits[1])
        largest = np.abs(wanted.astype(np.float64) - found).max(initial=0)
        return f"{count:,} of {wanted.size:,} numbers differ, by at most {largest:.3g}" if count else ""
    if isinstance(wanted, str) and isinstance(found, str):
        lines = (re.split(r"(?<=[,{}\n])", text) for text in (wanted, found))
        changes = difflib.unified_diff(*lines, n=0, lineterm="")
        return " ".join(line.strip() for line in changes if not line.startswith(("---", "+++", "@@")))
    if isinstance(wanted, bytes) and wanted != found:
        return f"{len(wanted):,} -> {len(found):,} bytes of other content"
    return "" if wanted == found else f"{wanted!r} -> {found!r}"
