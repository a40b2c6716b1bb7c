"""Axis scales: map values to positions, and choose the ends and ticks of an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

# Steps between ticks, in powers of ten.
STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Scale:
    """Map values from `low` .. `high` to `start` .. `end`, linearly, or by their logarithms if `logarithmic`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Return the position of a value; a value beyond an end gets the position of the end."""
        low, high, value = (math.log10(each) if self.logarithmic else each for each in (self.low, self.high, value))
        share = (value - low) / (high - low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """List the values of the ticks: powers of ten, or a few round numbers."""
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            return [10.0**power for power in range(first, last + 1)]
        step = choose_step(self.high - self.low)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(number * step, 12) for number in range(first, last + 1)]


def choose_step(span: float, most: int = 5) -> float:
    """Choose the smallest round step that divides a span into `most` parts or fewer."""
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(step * power for step in STEPS if step * power * most >= span * (1 - 1e-9))


def choose_ends(values: Iterable[float]) -> tuple[float, float]:
    """Choose round ends of an axis that includes all finite values; they differ even for a single value."""
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = abs(high) * 0.1 or 1.0
        low, high = low - room, high + room
    step = choose_step(high - low)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def format_number(value: float) -> str:
    """Format a number of an axis in a short form: 20000 as 20k, 3000000 as 3M."""
    for least, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= least:
            return f"{value / (1e3 if suffix == 'k' else least):.4g}{suffix}"
    return f"{value:.4g}"
