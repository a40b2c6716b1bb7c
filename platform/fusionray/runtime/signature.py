"""Check that models have the inputs and outputs that this runtime drives, before the first picture meets them."""

from __future__ import annotations

from collections.abc import Mapping

from fusionray.errors import BundleInvalid
from fusionray.export.bundle import GENERATOR_NAME, IDENTITY_NAME, IDENTITY_SIZE, Bundle
from fusionray.runtime.engine import Engine, Port


def check_generator(bundle: Bundle, generator: Engine) -> None:
    """Compare the generator's inputs and outputs with what this runtime drives.

    Raises: BundleInvalid naming the file and the input or output that differs.
    """
    size = bundle.description.size
    inputs = {"source": [bundle.source_length], "target": [3, size, size]}
    check_ports(bundle, GENERATOR_NAME, "input", generator.inputs, inputs)
    outputs = {"output": [3, size, size], "mask": [1, size, size]}
    check_ports(bundle, GENERATOR_NAME, "output", generator.outputs, outputs)


def check_identity(bundle: Bundle, identity: Engine) -> None:
    """Compare the identity encoder's input and output with what this runtime drives.

    Raises: BundleInvalid naming the file and the input or output that differs.
    """
    check_ports(bundle, IDENTITY_NAME, "input", identity.inputs, {"input": [3, IDENTITY_SIZE, IDENTITY_SIZE]})
    check_ports(bundle, IDENTITY_NAME, "output", identity.outputs, {"source": [bundle.source_length]})


def check_ports(bundle: Bundle, file: str, kind: str, found: Mapping[str, Port], wanted: dict[str, list[int]]) -> None:
    """Compare one model's inputs or outputs, by name, with the shapes wanted behind the batch.

    Raises: BundleInvalid.
    """
    where = f"{bundle.folder}/{file}"
    shapes = {name: list(port.shape) for name, port in found.items()}
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
    for name, port in found.items():
        if name in wanted and port.dtype != "tensor(float)":
            raise BundleInvalid(f"{where}: {kind} '{name}' is {port.dtype}; this version runs float32 inputs")
        if kind == "input" and name not in wanted:
            raise BundleInvalid(f"{where}: wants an input '{name}' that this version does not know")
