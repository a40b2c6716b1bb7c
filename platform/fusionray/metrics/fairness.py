"""Fairness: the mean of a score for groups of people, and the gap between the best and the worst group.

Groups are thirds of a true parameter of synthetic people. Steps of colour are grouped by the measured tones of source
and target, of photographs, too: they say how well colours fit, and nothing of a person.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusionray.metrics.skin_steps import TONES, name_tone

TertileNames = tuple[str, str, str]
"""Names of the groups whose parameter lies below 1/3, from there to 2/3, and from 2/3 on."""

SKIN_TONES: TertileNames = ("dark", "medium", "light")
AGES: TertileNames = ("young", "middle", "old")


@dataclass(frozen=True)
class GroupMeans:
    """Means by group. `by_group`: groups with enough rows; `num_rows`: rows of every group; `lower_is_better`: as of an
    error.
    """

    by_group: Mapping[str, float]
    num_rows: Mapping[str, int]
    lower_is_better: bool = False

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the names of the groups with too few rows."""
        return tuple(name for name in self.num_rows if name not in self.by_group)

    @property
    def worst(self) -> str:
        """Return the name of the group with the worst mean; empty if no group has enough rows."""
        choose = max if self.lower_is_better else min
        return choose(self.by_group, key=self.by_group.__getitem__, default="")

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


def compare_tones(
    step_N: NDArray[np.generic],
    own_N: NDArray[np.generic],
    source_N: NDArray[np.floating],
    target_N: NDArray[np.floating],
    *,
    min_rows: int = 10,
) -> GroupMeans:
    """Divide the mean step of fused pictures by that of their targets, for each pair of tones of source and target.

    Tones are individual typology angles. Rows whose step is nan are not counted; lower is better.
    """
    names = np.array(
        [f"{name_tone(source)} on {name_tone(target)}" for source, target in zip(source_N, target_N, strict=True)]
    )
    known_N = ~(np.isnan(np.asarray(step_N, np.float64)) | np.isnan(np.asarray(own_N, np.float64)))
    groups = [f"{source} on {target}" for source in TONES for target in TONES]
    chosen = {group: known_N & (names == group) for group in groups}
    return GroupMeans(
        by_group={
            group: float(np.mean(step_N[rows]) / np.mean(own_N[rows]))
            for group, rows in chosen.items()
            if rows.sum() >= max(1, min_rows) and np.mean(own_N[rows]) > 0
        },
        num_rows={group: int(rows.sum()) for group, rows in chosen.items()},
        lower_is_better=True,
    )
