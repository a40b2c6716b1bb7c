"""Colours of skin, iris, hair, lips and clothes. Tables hold display values; functions return linear light.

Display = sqrt(linear): gamma 2 is close to sRGB and much cheaper. All colours are RGB [N, 3, 1, 1].
"""

from __future__ import annotations

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.device import constant_like

_SKIN = (
    (0.29, 0.195, 0.155),
    (0.43, 0.295, 0.22),
    (0.60, 0.425, 0.325),
    (0.755, 0.565, 0.45),
    (0.87, 0.70, 0.59),
    (0.96, 0.84, 0.77),
)
_IRIS = (
    (0.13, 0.075, 0.05),
    (0.32, 0.18, 0.09),
    (0.56, 0.38, 0.14),
    (0.32, 0.50, 0.26),
    (0.46, 0.56, 0.60),
    (0.22, 0.46, 0.78),
)
_HAIR = (
    (0.08, 0.07, 0.07),
    (0.20, 0.14, 0.10),
    (0.37, 0.25, 0.16),
    (0.60, 0.44, 0.27),
    (0.85, 0.69, 0.42),
    (0.94, 0.88, 0.74),
)


def blend_stops(stops: tuple[tuple[float, float, float], ...], position: Tensor) -> Tensor:
    """Interpolate linearly along equidistant display colours; position [N, 1, 1] in [0, 1] -> linear [N, 3, 1, 1]."""
    table_KC = constant_like(stops, position)
    order_K = torch.arange(len(stops), dtype=position.dtype, device=position.device)
    weight_NK = (1.0 - (position[:, 0] * (len(stops) - 1) - order_K).abs()).clamp(min=0.0)
    return to_linear((weight_NK[:, :, None] * table_KC).sum(dim=1)[:, :, None, None])


def to_linear(display: Tensor) -> Tensor:
    """Convert display values to linear light."""
    return display * display


def stack_rgb(red: Tensor, green: Tensor, blue: Tensor) -> Tensor:
    """Stack three [N, 1, 1] into a colour [N, 3, 1, 1]."""
    return torch.stack((red, green, blue), dim=1)


def constant(like: Tensor, red: float, green: float, blue: float) -> Tensor:
    """Return one display colour as linear light [1, 3, 1, 1] on the device of `like`."""
    return to_linear(constant_like((red, green, blue), like)).view(1, 3, 1, 1)


def skin_colour(tone: Tensor, warmth: Tensor) -> Tensor:
    """Return the colour of skin: tone from very dark (0) to very light (1), warmth from rosy (-1) to golden (1)."""
    base = blend_stops(_SKIN, tone)
    one = torch.ones_like(warmth)
    return base * stack_rgb(one + 0.02 * warmth, one + 0.10 * warmth, one - 0.20 * warmth)


def iris_colour(tone: Tensor) -> Tensor:
    """Return the colour of an iris: from black-brown (0) over amber and green to blue (1)."""
    return blend_stops(_IRIS, tone)


def hair_colour(tone: Tensor, warmth: Tensor, grey: Tensor) -> Tensor:
    """Return the colour of hair: tone from black (0) to platinum (1); warmth adds red, grey adds white."""
    base = blend_stops(_HAIR, tone)
    strength = 0.25 + 0.75 * (1.0 - (2.0 * tone - 0.8).abs()).clamp(min=0.0)
    red = constant(tone, 0.62, 0.24, 0.09) * (0.3 + tone)[:, None]
    base = torch.lerp(base, red, (0.85 * warmth * strength)[:, None])
    return torch.lerp(base, constant(tone, 0.80, 0.80, 0.82), (0.9 * grey)[:, None])


def lip_colour(skin: Tensor, paint: Tensor) -> Tensor:
    """Return the colour of lips: redder than the skin; `paint` in [0, 1] blends in a saturated red."""
    natural = skin * constant_like((0.80, 0.42, 0.42), skin).view(1, 3, 1, 1)
    natural = natural + constant(skin, 0.16, 0.04, 0.05)
    bright = constant(skin, 0.78, 0.10, 0.16)
    return torch.lerp(natural, bright, (0.85 * (paint - 0.35).clamp(min=0.0) / 0.65)[:, None])


def hue_colour(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Convert hue, saturation and value, all in [0, 1], to a colour.

    Source: the closed form f(n) = v - v s max(0, min(k, 4 - k, 1)), k = (n + 6 h) mod 6, n = 5, 3, 1.
    """
    offset = constant_like((5.0, 3.0, 1.0), hue).view(1, 3, 1, 1)
    k = torch.remainder(offset + 6.0 * hue[:, None], 6.0)
    value = value[:, None]
    return to_linear(value - value * saturation[:, None] * torch.minimum(k, 4.0 - k).clamp(0.0, 1.0))
