"""Check when a bundle is loaded that its models have the inputs and outputs that it describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import DESCRIPTION_NAME, GENERATOR_NAME, IDENTITY_NAME, IDENTITY_SIZE
from fusionray.errors import BundleInvalid
from fusionray.runtime.engines.engine import InferenceEngine, Port


def check_generator(bundle: Bundle, generator: InferenceEngine) -> None:
    """Compare the generator's inputs and outputs with their description in the bundle.

    Raises: BundleInvalid naming the file and the input or output that differs.
    """
    size = bundle.description.size
    inputs = {"source": bundle.source_shape, "target": (3, size, size)}
    check_ports(bundle, GENERATOR_NAME, "input", generator.inputs, inputs)
    outputs: dict[str, tuple[int, ...]] = {"output": (3, size, size)}
    if has_mask(bundle):
        outputs["mask"] = (1, size, size)
    check_ports(bundle, GENERATOR_NAME, "output", generator.outputs, outputs)


def check_identity(bundle: Bundle, identity: InferenceEngine) -> None:
    """Compare the identity encoder's input and output with their description in the bundle.

    Raises: BundleInvalid naming the file and the input or output that differs.
    """
    crop = (3, IDENTITY_SIZE, IDENTITY_SIZE)
    check_ports(bundle, IDENTITY_NAME, "input", identity.inputs, {"input": crop})
    length = bundle.tensor(IDENTITY_NAME, "source").shape[-1]
    wanted = (length,) if isinstance(length, int) else bundle.source_shape
    check_ports(bundle, IDENTITY_NAME, "output", identity.outputs, {"source": wanted})
    if not bundle.description.embedding.file and wanted != bundle.source_shape:
        raise BundleInvalid(
            f"{bundle.folder}/{DESCRIPTION_NAME}: {IDENTITY_NAME} gives {wanted[0]} values and {GENERATOR_NAME} takes "
            f"{bundle.source_shape[0]}; name a matrix or converter, or use the encoder that the generator learned from"
        )


def check_ports(
    bundle: Bundle, file: str, kind: str, found: Mapping[str, Port], wanted: Mapping[str, Sequence[int]]
) -> None:
    """Compare one model's inputs or outputs with the wanted shapes by role, which leave out the batch.

    Raises: BundleInvalid.
    """
    where = f"{bundle.folder}/{file}"
    roles = {bundle.port(file, role): role for role in wanted}
    for name, role in roles.items():
        if name not in found:
            raise BundleInvalid(f"{where}: has no {kind} '{name}' (it has {', '.join(found)}); export it again")
        port, shape = found[name], tuple(wanted[role])
        if port.dtype != "tensor(float)":
            raise BundleInvalid(f"{where}: {kind} '{name}' is {port.dtype}; this version runs float32 inputs")
        if kind == "output" and not port.shape:
            # Some exporters leave out the shape of an output.
            continue
        batch, *rest = port.shape
        # Dynamic dimensions have names instead of numbers.
        if len(rest) != len(shape) or any(isinstance(a, int) and a != b for a, b in zip(rest, shape, strict=False)):
            text = ", ".join(map(str, shape))
            raise BundleInvalid(f"{where}: {kind} '{name}' is {list(port.shape)}, not [N, {text}]")
        promised = bundle.tensor(file, role).shape[0]
        if isinstance(batch, int) and batch != promised:
            raise BundleInvalid(
                f"{where}: {kind} '{name}' has the fixed batch {batch} and {DESCRIPTION_NAME} says {promised}; import "
                "the model again"
            )
    unknown = [name for name in found if name not in roles]
    if kind == "input" and unknown:
        raise BundleInvalid(
            f"{where}: has an input '{unknown[0]}' that {DESCRIPTION_NAME} does not describe; export or import the "
            "model again"
        )


def has_mask(bundle: Bundle) -> bool:
    """Return whether the generator has a mask output."""
    return "mask" in bundle.description.tensors.get(GENERATOR_NAME, {})


def fixed_batch(bundle: Bundle, file: str) -> int | None:
    """Return the fixed batch size of a model, or None if the batch is dynamic."""
    sizes = [described.shape[0] for described in bundle.description.tensors[file].values() if described.shape]
    return next((size for size in sizes if isinstance(size, int)), None)
