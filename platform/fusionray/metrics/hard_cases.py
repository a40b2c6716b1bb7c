"""Hard cases: the pairs of an evaluation on which a fusion is likely to fail, each beside all pairs.

Means over all pairs hide them: a model that is right for faces from the front, with open eyes and without glasses, has
good figures. Most cases are known of rendered people alone; that two people look alike, that a target is dark or soft
is measured of photographs, too.

Shape suffixes: N pairs, P parameters of a person, A attributes of a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fusionray.data.synthetic import ATTRIBUTE_NAMES, IDENTITY_NAMES
from fusionray.metrics.fairness import GroupMeans
from fusionray.types import SyntheticTruth

PREFIX = "case_"
ALL = "all"
# The share of pairs that counts as the most alike, the darkest, the softest.
EXTREME_SHARE = 0.2
MIN_ROWS = 10

Read = Callable[[Callable[[str], Tensor]], Tensor]
# Name -> whether the attributes of the target say so.
TARGET_CASES: dict[str, Read] = {
    "target_turned_30_degrees": lambda read: read("yaw").abs() >= 30,
    "target_eyes_closed": lambda read: read("eye_closure") >= 0.7,
    "target_mouth_open": lambda read: read("mouth_open") >= 0.6,
    "target_with_glasses": lambda read: read("glasses") >= 0.5,
}
# Name -> whether the parameters of the source person say so.
SOURCE_CASES: dict[str, Read] = {
    "source_with_beard": lambda read: (read("beard") >= 0.5) | (read("moustache") >= 0.5),
}


def find_rendered_cases(truth: SyntheticTruth) -> dict[str, Tensor]:
    """Return which pairs of rendered people are hard: a column [N] of 0 and 1 for each case."""

    def apply(cases: Mapping[str, Read], values: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        return {
            f"{PREFIX}{name}": is_case(lambda column: values[:, names.index(column)]).float()
            for name, is_case in cases.items()
        }

    return apply(TARGET_CASES, truth.target_attributes, ATTRIBUTE_NAMES) | apply(
        SOURCE_CASES, truth.source_identity, IDENTITY_NAMES
    )


def find_extreme_cases(
    likeness_N: NDArray[np.floating], light_N: NDArray[np.floating], detail_N: NDArray[np.floating]
) -> dict[str, NDArray[np.float32]]:
    """Return which pairs are hard by what is measured of any pictures, as `find_rendered_cases` does.

    `likeness_N`: cosine of source and target; `light_N`, `detail_N`: mean light and gradient energy of the target.
    """
    extremes = {"people_alike": likeness_N, "target_dark": -light_N, "target_soft": -detail_N}
    return {
        f"{PREFIX}{name}": np.asarray(values >= np.quantile(values, 1 - EXTREME_SHARE), np.float32)
        for name, values in extremes.items()
    }


def compare_cases(
    scores: Mapping[str, NDArray[np.float32]],
    statistic: Callable[..., float],
    names: tuple[str, ...],
    *,
    lower_is_better: bool = False,
) -> GroupMeans:
    """Return a statistic of some scores for all pairs, and for those of each case with enough of them."""
    cases = {name: values > 0.5 for name, values in scores.items() if name.startswith(PREFIX)}
    rows = {ALL: np.ones(len(scores[names[0]]), bool)} | {
        name.removeprefix(PREFIX).replace("_", " "): chosen for name, chosen in cases.items()
    }
    values = {
        name: statistic(*(scores[key][chosen] for key in names))
        for name, chosen in rows.items()
        if chosen.sum() >= MIN_ROWS
    }
    return GroupMeans(
        by_group={name: value for name, value in values.items() if np.isfinite(value)},
        num_rows={name: int(chosen.sum()) for name, chosen in rows.items()},
        lower_is_better=lower_is_better,
    )
