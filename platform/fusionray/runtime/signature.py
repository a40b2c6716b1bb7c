"""Check that models have the inputs and outputs that this runtime drives, before the first picture meets them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnxruntime as ort

from fusionray.errors import BundleInvalid
from fusionray.export.bundle import GENERATOR_NAME, IDENTITY_NAME, IDENTITY_SIZE, Bundle


def check_models(bundle: Bundle, generator: ort.InferenceSession, identity: ort.InferenceSession) -> None:
    """Compare the models' inputs and outputs with what this runtime drives.

    Raises: BundleInvalid naming the file and the input or output that differs.
    """
    size = bundle.description.size
    wanted: dict[str, tuple[ort.InferenceSession, dict[str, list[int]], dict[str, list[int]]]] = {
        GENERATOR_NAME: (
            generator,
            {"source": [bundle.source_length], "target": [3, size, size]},
            {"output": [3, size, size], "mask": [1, size, size]},
        ),
        IDENTITY_NAME: (
            identity,
            {"input": [3, IDENTITY_SIZE, IDENTITY_SIZE]},
            {"source": [bundle.source_length]},
        ),
    }
    for file, (session, inputs, outputs) in wanted.items():
        check_ports(bundle, file, "input", session.get_inputs(), inputs)
        check_ports(bundle, file, "output", session.get_outputs(), outputs)


def check_ports(bundle: Bundle, file: str, kind: str, found: Sequence[Any], wanted: dict[str, list[int]]) -> None:
    """Compare one model's inputs or outputs, by name, with the shapes wanted behind the batch.

    Raises: BundleInvalid.
    """
    where = f"{bundle.folder}/{file}"
    shapes = {port.name: list(port.shape) for port in found}
    for name, shape in wanted.items():
        if name not in shapes:
            raise BundleInvalid(f"{where}: has no {kind} '{name}' (it has {', '.join(shapes)}); export it again")
        batch, *rest = shapes[name]
        # Sizes that the model leaves open have names instead of numbers.
        if len(rest) != len(shape) or any(isinstance(a, int) and a != b for a, b in zip(rest, shape, strict=False)):
            raise BundleInvalid(f"{where}: {kind} '{name}' is {[batch, *rest]}, not [N, {str(shape)[1:]}")
        if isinstance(batch, int):
            raise BundleInvalid(
                f"{where}: {kind} '{name}' has the fixed batch {batch}; this version runs models with a dynamic batch"
            )
    for port in found:
        if port.name in wanted and port.type != "tensor(float)":
            raise BundleInvalid(f"{where}: {kind} '{port.name}' is {port.type}; this version runs float32 inputs")
        if kind == "input" and port.name not in wanted:
            raise BundleInvalid(f"{where}: wants an input '{port.name}' that this version does not know")
