"""What a family exports: the networks of a bundle as torch modules, and their description.

Shape suffixes: N rows, S side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fusionray.bundle.description import GENERATOR_NAME, describe_pictures

# Draws `count` random rows of each input of a graph, float32, without a trained model.
DrawGraphInputs = Callable[[np.random.Generator, int], tuple[Tensor, ...]]


@dataclass(frozen=True)
class GraphExport:
    """One network of a bundle: a torch module in eval mode, to be exported to one ONNX file.

    `inputs` and `outputs`: names, in the order of the module's arguments and of its return values. Axis 0 of all is
    the batch, of any length. `draw`: draws the inputs on which torch and ONNX are compared. `any_size`: pictures among
    the inputs whose height and width (axes 2 and 3) are any multiples of a number, by name; all others are fixed.
    """

    file: str
    module: nn.Module
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    draw: DrawGraphInputs
    any_size: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class BundleExport:
    """The export of a family: the networks of a bundle, and their description in `bundle.json`.

    `task`: selects the code that runs the bundle (`runtime.tasks`). `graphs`: the first one makes the picture and
    becomes `generator.onnx`. `description`: fields of `bundle.json` besides those of every bundle; at least `size` and
    `tensors`.

    Variants in fewer bits are calibrated and measured on crops of the run's shards, uint8 [N,3,S,S]. `make_inputs`
    turns crops into inputs of the first graph, whose `output` lies in [-1,1]; without it there are no variants. If the
    shards are not available, `draw_fallback` (number, seed) draws crops instead, and `fallback_name` describes them.
    """

    task: str
    graphs: tuple[GraphExport, ...]
    description: Mapping[str, Any]
    make_inputs: Callable[[Tensor], tuple[Tensor, ...]] | None = None
    draw_fallback: Callable[[int, int], Tensor] | None = None
    fallback_name: str = "random crops"


def noise_pictures(random: np.random.Generator, count: int, size: int) -> Tensor:
    """Draw noise as pictures, float32 [N,3,S,S] in [-1,1]."""
    return torch.from_numpy(random.uniform(-1, 1, (count, 3, size, size)).astype(np.float32))


def export_pictures(
    task: str,
    module: nn.Module,
    inputs: tuple[str, ...],
    size: int,
    make_inputs: Callable[[Tensor], tuple[Tensor, ...]],
) -> BundleExport:
    """Export a module that maps pictures [N,3,S,S] to one, all in [-1,1]; the runtime needs no code of the family."""

    def draw(random: np.random.Generator, count: int) -> tuple[Tensor, ...]:
        return tuple(noise_pictures(random, count, size) for _ in inputs)

    graph = GraphExport(GENERATOR_NAME, module.eval(), inputs, ("output",), draw)
    return BundleExport(task, (graph,), {"size": size, "tensors": describe_pictures(size, inputs)}, make_inputs)
