"""Face swappers as they are made elsewhere, in small: output = target + half of what the source says of each channel.

Of an embedding that is its first three values, of a picture the mean of each channel, both as the model writes them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from tests.support.tiny_bundle import serialise

Shape = list[str | int]


def build_swapper(
    source: Shape,
    target: Shape,
    *,
    names: tuple[str, str, str] = ("source", "target", "output"),
    mask: str | None = None,
    unused: NDArray[np.float32] | None = None,
    domain: str = "",
    frozen: bool = False,
) -> bytes:
    """Build one; `mask` names an output that is 5 everywhere, `unused` is a constant that no node reads.

    `frozen`: whatever its inputs say, it runs on one row only.
    """
    source_name, target_name, output_name = names
    constants: dict[str, NDArray[np.generic]] = {"half": np.array(0.5, np.float32)}
    if len(source) == 4:
        nodes = [helper.make_node("GlobalAveragePool", [source_name], ["said"])]
    else:
        constants |= {key: np.array([value]) for key, value in (("start", 0), ("stop", 3), ("axis", 1))}
        constants["last_axes"] = np.array([2, 3])
        nodes = [
            helper.make_node("Slice", [source_name, "start", "stop", "axis"], ["tint"]),
            helper.make_node("Unsqueeze", ["tint", "last_axes"], ["said"]),
        ]
    nodes += [
        helper.make_node("Mul", ["said", "half"], ["soft"]),
        helper.make_node("Add", [target_name, "soft"], [output_name], domain=domain),
    ]
    if frozen:
        constants["one_row"] = np.array([1, *target[1:]])
        nodes[-1].input[0] = "reshaped"
        nodes.insert(-1, helper.make_node("Reshape", [target_name, "one_row"], ["reshaped"]))
    outputs: dict[str, Shape] = {output_name: target}
    if mask is not None:
        constants |= {"one": np.array([1]), "zero": np.array(0.0, np.float32), "five": np.array(5.0, np.float32)}
        constants |= {"first": np.array([0]), "channels": np.array([1])}
        nodes += [
            helper.make_node("Slice", [target_name, "first", "one", "channels"], ["plane"]),
            helper.make_node("Mul", ["plane", "zero"], ["nothing"]),
            helper.make_node("Add", ["nothing", "five"], [mask]),
        ]
        outputs[mask] = [target[0], 1, *target[2:]]
    if unused is not None:
        constants["buff2fs"] = unused
    return serialise(nodes, constants, {source_name: source, target_name: target}, outputs)


def build_encoder(
    *, batch: str | int = "N", names: tuple[str, str] = ("input.1", "683"), own_levels: bool = False
) -> bytes:
    """Build an ArcFace-like encoder whose embedding is a long one; with `own_levels` it takes 0..255."""
    projection = 3.0 * np.random.default_rng(3).standard_normal((192, 512)).astype(np.float32)
    constants: dict[str, NDArray[np.generic]] = {"projection": projection}
    first, nodes = names[0], []
    if own_levels:
        constants |= {"mean": np.array(127.5, np.float32), "scale": np.array(1 / 127.5, np.float32)}
        nodes = [
            helper.make_node("Sub", [first, "mean"], ["centred"]),
            helper.make_node("Mul", ["centred", "scale"], ["signed"]),
        ]
        first = "signed"
    nodes += [
        helper.make_node("AveragePool", [first], ["blurred"], kernel_shape=[14, 14], strides=[14, 14]),
        helper.make_node("Flatten", ["blurred"], ["flat"]),
        helper.make_node("MatMul", ["flat", "projection"], [names[1]]),
    ]
    return serialise(nodes, constants, {names[0]: [batch, 3, 112, 112]}, {names[1]: [batch, 512]})


def embed(crop_SS3: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Compute what the encoder gives for one crop of 112 px, in numpy."""
    projection = 3.0 * np.random.default_rng(3).standard_normal((192, 512)).astype(np.float32)
    picture = (crop_SS3.astype(np.float32) / 127.5 - 1.0).transpose(2, 0, 1)
    blurred = picture.reshape(3, 8, 14, 8, 14).mean(axis=(2, 4)).reshape(-1)
    return np.asarray(blurred @ projection, np.float32)


def save(folder: Path, **models: bytes) -> dict[str, str]:
    """Write models as files `<name>.onnx`; give their paths by name."""
    for name, data in models.items():
        (folder / f"{name}.onnx").write_bytes(data)
    return {name: str(folder / f"{name}.onnx") for name in models}
