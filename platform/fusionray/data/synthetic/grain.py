"""Sensor grain that belongs to the picture, not to the output: a crop of a picture shows the same grain.

Legend: colours [N, 3, H, W] display values; row scalars [N, 1, 1].
"""

from __future__ import annotations

import torch
from torch import Tensor

from fusionray.data.synthetic.geometry import Region
from fusionray.data.synthetic.parameters import Columns

_CELLS = 256
_STRONGEST = 0.05


def add_grain(display: Tensor, attributes: Columns, picture: Region) -> Tensor:
    """Add the grain of each row: one value a cell of a 256 x 256 grid over the picture, fainter in smaller outputs."""
    amount = attributes["noise"]
    if not bool((amount > 0).any()):
        return display
    # Averaging k x k cells into a pixel would divide the grain by k.
    finer = (1.0 / (_CELLS * picture.step)).clamp(max=1.0)
    column, row = (picture.u * _CELLS).floor(), (picture.v * _CELLS).floor()
    grain = _cell_noise(column, row, torch.floor(attributes["noise_phase"] * 4096.0))
    return (display + (_STRONGEST * amount * finer * grain)[:, None]).clamp(0.0, 1.0)


def _cell_noise(column: Tensor, row: Tensor, phase: Tensor) -> Tensor:
    """Return a hash of whole numbers in [-1, 1]; integers, so that every device agrees."""
    state = column.to(torch.int64) * 0x27D4EB2F + row.to(torch.int64) * 0x165667B1 + phase.to(torch.int64) * 0x9E3779B1
    state = (state ^ ((state >> 15) & 0x1FFFF)) * 0x2C1B3C6D & 0xFFFFFFFF
    state = (state ^ (state >> 12)) * 0x297A2D39 & 0xFFFFFFFF
    return ((state ^ (state >> 15)) & 0xFFFF).to(torch.float32) / 32767.5 - 1.0
