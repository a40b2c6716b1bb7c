"""The background: eight patterns, each of which blends two colours.

Legend: planes [N, H, W] in picture coordinates; row scalars [N, 1, 1]; colours [N, 3, ...], linear.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.device import host_decides
from fusionray.data.synthetic.graphics.geometry import edge_coverage, smoothstep
from fusionray.data.synthetic.graphics.palette import hue_colour
from fusionray.data.synthetic.parameters.definitions import BACKGROUND_STYLES, ParameterColumns

Pattern = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _plain(x: Tensor, y: Tensor, phase: Tensor, edge_width: Tensor) -> Tensor:
    return 0.12 * y + 0.0 * (x + phase + edge_width)


def _gradient(x: Tensor, y: Tensor, phase: Tensor, edge_width: Tensor) -> Tensor:
    angle = 2.0 * math.pi * phase
    return ((x - 0.5) * angle.cos() + (y - 0.5) * angle.sin() + 0.5 + 0.0 * edge_width).clamp(0.0, 1.0)


def _glow(x: Tensor, y: Tensor, phase: Tensor, edge_width: Tensor) -> Tensor:
    dx, dy = x - 0.15 - 0.7 * phase, y - 0.35
    return 1.0 - (1.3 * (dx * dx + dy * dy + 0.0 * edge_width).sqrt()).clamp(max=1.0)


def _bokeh(x: Tensor, y: Tensor, phase: Tensor, edge_width: Tensor) -> Tensor:
    field = 0.25 * y
    for index in range(7):
        centre_x = torch.remainder(phase * 7.31 + 0.618 * index, 1.0)
        centre_y = torch.remainder(phase * 3.77 + 0.414 * index * index + 0.1, 1.0)
        radius = 0.05 + 0.09 * torch.remainder(phase * 11.0 + 0.37 * index, 1.0)
        away = ((x - centre_x) ** 2 + (y - centre_y) ** 2).sqrt()
        field = field + 0.38 * edge_coverage(radius - away, edge_width + 0.012)
    return field.clamp(max=1.0)


def _curtain(x: Tensor, y: Tensor, phase: Tensor, edge_width: Tensor) -> Tensor:
    wave = torch.sin(2.0 * math.pi * ((6.0 + 5.0 * phase) * x + 0.12 * torch.sin(5.0 * y) + phase))
    return 0.5 + 0.4 * wave + 0.2 * (y - 0.5) + 0.0 * edge_width


def _window(x: Tensor, y: Tensor, phase: Tensor, edge_width: Tensor) -> Tensor:
    left, width, low = 0.55 * phase - 0.1, 0.55, 0.70
    inside = torch.minimum(torch.minimum(x - left, left + width - x), torch.minimum(y - 0.06, low - y))
    bars = torch.minimum((x - left - 0.5 * width).abs(), (y - 0.38).abs()) - 0.012
    return 0.10 * y + 0.85 * edge_coverage(torch.minimum(inside, bars), edge_width + 0.004)


def _horizon(x: Tensor, y: Tensor, phase: Tensor, edge_width: Tensor) -> Tensor:
    line = 0.45 + 0.25 * phase + 0.035 * torch.sin(9.0 * x + 20.0 * phase) + 0.02 * torch.sin(23.0 * x)
    ground = edge_coverage(y - line, edge_width + 0.015)
    return ground * (0.75 + 0.25 * smoothstep(y, 0.4, 1.0)) + (1.0 - ground) * 0.22 * y


def _tiles(x: Tensor, y: Tensor, phase: Tensor, edge_width: Tensor) -> Tensor:
    rows = (7.0 + 5.0 * phase) * y
    shifted = (4.0 + 3.0 * phase) * x + 0.5 * torch.remainder(torch.floor(rows), 2.0) + phase
    fx, fy = torch.remainder(shifted, 1.0), torch.remainder(rows, 1.0)
    inside = torch.minimum(torch.minimum(fx, 1.0 - fx) * 0.2, torch.minimum(fy, 1.0 - fy) * 0.1)
    shade = 0.18 * torch.sin(12.9 * torch.floor(shifted) + 7.7 * torch.floor(rows))
    return 0.12 + (0.65 + shade) * edge_coverage(inside - 0.006, edge_width)


_PATTERNS: dict[str, Pattern] = {
    "plain": _plain, "gradient": _gradient, "glow": _glow, "bokeh": _bokeh, "curtain": _curtain, "window": _window,
    "horizon": _horizon, "tiles": _tiles,
}  # fmt: skip


def _draw_patterns(code_N: Tensor, x: Tensor, y: Tensor, phase: Tensor, edge_width: Tensor) -> Tensor:
    """Draw the pattern of each row [N, H, W]."""
    field = torch.empty_like(x)
    for index, style in enumerate(BACKGROUND_STYLES):
        if not host_decides(x.device):
            drawn = _PATTERNS[style](x, y, phase, edge_width)
            field = torch.where((code_N == index)[:, None, None], drawn, field)
            continue
        rows = (code_N == index).nonzero()[:, 0]
        if rows.numel():
            field[rows] = _PATTERNS[style](x[rows], y[rows], phase[rows], edge_width[rows])
    return field


def draw_background(attributes: ParameterColumns, x: Tensor, y: Tensor, edge_width: Tensor) -> Tensor:
    """Draw the background [N, 3, H, W] at picture coordinates x, y; `edge_width` [N, 1, 1] in the same units."""
    phase = attributes["background_phase"]
    code = attributes["background_style"][:, 0, 0].round().clamp(0, len(BACKGROUND_STYLES) - 1).to(torch.int64)
    field = _draw_patterns(code, x, y, phase, edge_width)
    hue, saturation = attributes["background_hue"], 0.75 * attributes["background_saturation"]
    value = 0.08 + 0.84 * attributes["background_value"]
    first = hue_colour(hue, saturation, value)
    other = (value + 0.42 * attributes["background_contrast"]).clamp(0.04, 1.0)
    second = hue_colour(torch.remainder(hue + 0.12 + 0.2 * phase, 1.0), 0.8 * saturation, other)
    return torch.lerp(first, second, field[:, None])
