"""Encoded styles: float32 [L], means and deviations of features at a quarter and at half of the resolution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fusionray.runtime.pixels import FloatArray

# Sides of what the models take are multiples of it.
STRIDE = 4


def mix_styles(styles: Sequence[FloatArray], weights: Sequence[float] | None = None) -> FloatArray:
    """Average encoded styles [L] with weights, by default equal ones, which are divided by their sum.

    Raises: ValueError as `check_weights`.
    """
    chosen = np.asarray([1.0] * len(styles) if weights is None else weights, np.float32)
    check_weights(chosen.tolist(), len(styles))
    mixed: FloatArray = np.tensordot(chosen / chosen.sum(), np.stack(styles), axes=1)
    return mixed


def check_weights(weights: Sequence[float], num_styles: int) -> None:
    """Raise ValueError if weights are negative, all 0, or not as many as styles."""
    if len(weights) != num_styles or not num_styles:
        raise ValueError(f"{len(weights)} weights for {num_styles} styles; give one for each style")
    if not (np.isfinite(weights).all() and min(weights) >= 0 and sum(weights) > 0):
        raise ValueError(f"weights {', '.join(f'{weight:g}' for weight in weights)}: must be at least 0, and not all 0")


def parse_weights(text: str, num_styles: int) -> list[float]:
    """Parse the weights of so many styles, as in `0.7,0.3`.

    Raises: ValueError as `check_weights`, or if the text is no list of numbers.
    """
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"weights {text}: give numbers, separated by commas") from None
    check_weights(weights, num_styles)
    return weights


def check_strength(strength: float) -> None:
    """Raise ValueError for a strength outside 0..1."""
    if not 0.0 <= strength <= 1.0:
        raise ValueError(f"strength {strength:g}: give a number from 0 (the content's own style) to 1")
