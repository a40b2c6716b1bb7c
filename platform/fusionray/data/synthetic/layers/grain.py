"""Sensor grain, fixed to the picture: a crop shows the same grain as the picture that it is cut from.

Legend: colours [N, 3, H, W] display values; row scalars [N, 1, 1].
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.device import is_needed
from fusionray.data.synthetic.graphics.pixel_window import PixelWindow
from fusionray.data.synthetic.parameters.definitions import ParameterColumns

_CELLS = 256
_TILE = 128
_STRONGEST = 0.06


def add_grain(display: Tensor, attributes: ParameterColumns, picture: PixelWindow) -> Tensor:
    """Add the grain of each row, in place: one value per cell of a 256 x 256 grid, weaker in smaller outputs."""
    amount = attributes["noise"]
    if not is_needed(amount > 0):
        return display
    # The average of k x k cells in one pixel has 1 / k of the grain.
    strength = _STRONGEST * amount * (1.0 / (_CELLS * picture.edge_width)).clamp(max=1.0)
    cell = (picture.v * _CELLS).floor_().mul_(_TILE).add_((picture.u * _CELLS).floor_())
    cell.add_((attributes["noise_phase"] * _TILE**2).floor())
    grain = _hash_tile(display.device)[cell.to(torch.int32).bitwise_and_(_TILE**2 - 1)]
    return display.add_(grain.mul_(strength)[:, None]).clamp_(0.0, 1.0)


@lru_cache(maxsize=8)
def _hash_tile(device: torch.device) -> Tensor:
    """Return a hash of the numbers 0 .. 128 * 128 - 1 in [-1, 1]; integer arithmetic gives the same on every device."""
    state = torch.arange(_TILE**2, dtype=torch.int64, device=device) * 0x9E3779B1 + 0x7F4A7C15
    for multiplier in (0x2C1B3C6D, 0x297A2D39):
        state = ((state ^ (state >> 15)) * multiplier) & 0xFFFFFFFF
    return ((state ^ (state >> 13)) & 0xFFFF).to(torch.float32) / 32767.5 - 1.0
