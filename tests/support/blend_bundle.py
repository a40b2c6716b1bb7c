"""A bundle of a task that knows no faces: two pictures in, their mean out. Put together by hand, no training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from fusionray.bundle.bundle import Bundle, write_bundle
from fusionray.bundle.description import BundleDescription, Lineage, Parity, TensorDescription
from tests.support.tiny_bundle import serialise

TASK = "blend"
BLEND_SIZE = 32


def build_mean(size: int = BLEND_SIZE, batch: str | int = "N") -> bytes:
    """output = (content + style) / 2."""
    nodes = [
        helper.make_node("Add", ["content", "style"], ["sum"]),
        helper.make_node("Mul", ["sum", "half"], ["output"]),
    ]
    picture: list[str | int] = [batch, 3, size, size]
    constants = {"half": np.array(0.5, np.float32)}
    return serialise(nodes, constants, {"content": picture, "style": picture}, {"output": picture})


def describe_blend(size: int = BLEND_SIZE, batch: str | int = "N", **changes: Any) -> BundleDescription:
    picture = TensorDescription(meaning="picture", shape=(batch, 3, size, size), minimum=-1.0, maximum=1.0)
    settings: dict[str, Any] = {
        "task": TASK,
        "name": "mean",
        "size": size,
        "tensors": {"generator.onnx": {"content": picture, "style": picture, "output": picture}},
        "licence": "Apache-2.0",
        "lineage": Lineage(data_manifest="0" * 64, config={"preset": "none"}, code_version="test"),
        "parity": Parity(tolerance=1e-4, largest_difference=0.0),
    }
    return BundleDescription(**{**settings, **changes})


def write_blend_bundle(folder: Path, **changes: Any) -> Bundle:
    return write_bundle(folder, {"generator.onnx": build_mean()}, describe_blend(**changes))
