"""Fairness: the mean of a score for groups of people, and the gap between the best and the worst group.

Groups are thirds of a true parameter of synthetic people; nothing estimates the skin tone or age of a photograph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TertileNames = tuple[str, str, str]
"""Names of the groups whose parameter lies below 1/3, from there to 2/3, and from 2/3 on."""

SKIN_TONES: TertileNames = ("dark", "medium", "light")
AGES: TertileNames = ("young", "middle", "old")


@dataclass(frozen=True)
class GroupMeans:
    """Means by group. `by_group`: groups with enough rows; `num_rows`: rows of every group."""

    by_group: Mapping[str, float]
    num_rows: Mapping[str, int]

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the names of the groups with too few rows."""
        return tuple(name for name in self.num_rows if name not in self.by_group)

    @property
    def worst(self) -> str:
        """Return the name of the group with the lowest mean; empty if no group has enough rows."""
        return min(self.by_group, key=self.by_group.__getitem__, default="")

    @property
    def gap(self) -> float:
        """Return the highest mean minus the lowest; nan with fewer than two groups."""
        means = self.by_group.values()
        return max(means) - min(means) if len(means) > 1 else float("nan")


def compare_groups(
    score_N: NDArray[np.generic], parameter_N: NDArray[np.floating], names: TertileNames, *, min_rows: int = 10
) -> GroupMeans:
    """Average a score (higher is better) over each third of the people's parameter in [0,1].

    Groups with fewer than `min_rows` rows are left out. Rows whose score is nan are not counted.

    Raises: ValueError if the parameter is not within [0,1].
    """
    if not ((parameter_N >= 0) & (parameter_N <= 1)).all():
        raise ValueError(f"the parameter that divides people into {', '.join(names)} must lie within [0, 1]")
    value_N = np.asarray(score_N, np.float64)
    third_N = np.digitize(parameter_N, (1 / 3, 2 / 3))
    groups = {name: value_N[(third_N == index) & ~np.isnan(value_N)] for index, name in enumerate(names)}
    return GroupMeans(
        by_group={name: float(values.mean()) for name, values in groups.items() if len(values) >= max(1, min_rows)},
        num_rows={name: len(values) for name, values in groups.items()},
    )
