"""Whether a figure holds for everybody: the same figure for groups of people, and the gap between them.

Groups are thirds of a person's parameter, which only synthetic faces have: nobody's skin or age is guessed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Thirds = tuple[str, str, str]
"""What a parameter below 1/3, below 2/3 and from there on is called."""

SKIN_TONES: Thirds = ("dark", "medium", "light")
AGES: Thirds = ("young", "middle", "old")


@dataclass(frozen=True)
class GroupFigures:
    """`by_group` means by name; `num_rows` how many rows each group has, those left out as too small included."""

    by_group: Mapping[str, float]
    num_rows: Mapping[str, int]

    @property
    def left_out(self) -> tuple[str, ...]:
        """Name the groups that are too small to say anything about."""
        return tuple(name for name in self.num_rows if name not in self.by_group)

    @property
    def worst(self) -> str:
        """Name the group with the lowest figure; empty if no group is large enough."""
        return min(self.by_group, key=self.by_group.__getitem__, default="")

    @property
    def gap(self) -> float:
        """Give the best figure minus the worst; nan with fewer than two groups, which leave nothing to compare."""
        figures = self.by_group.values()
        return max(figures) - min(figures) if len(figures) > 1 else float("nan")


def compare_groups(
    figure_N: NDArray[np.generic], parameter_N: NDArray[np.floating], names: Thirds, *, least_rows: int = 10
) -> GroupFigures:
    """Average a column, of which more is better, over each third of the people's parameter in [0,1].

    Groups with fewer than `least_rows` rows are left out. Rows whose figure is nan are not counted.

    Raises: ValueError if the parameter is not within [0,1].
    """
    if not ((parameter_N >= 0) & (parameter_N <= 1)).all():
        raise ValueError(f"the parameter that divides people into {', '.join(names)} must lie within [0, 1]")
    value_N = np.asarray(figure_N, np.float64)
    third_N = np.digitize(parameter_N, (1 / 3, 2 / 3))
    groups = {name: value_N[(third_N == index) & ~np.isnan(value_N)] for index, name in enumerate(names)}
    return GroupFigures(
        by_group={name: float(values.mean()) for name, values in groups.items() if len(values) >= max(1, least_rows)},
        num_rows={name: len(values) for name, values in groups.items()},
    )
