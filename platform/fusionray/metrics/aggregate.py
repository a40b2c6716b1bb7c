"""From columns to figures: what each pair scored, then means, ratios and gaps over the pairs, with their intervals.

Shape suffixes: N pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionray.metrics.attribute_reader import GROUPS
from fusionray.metrics.confidence import Interval, bootstrap
from fusionray.metrics.fairness import AGES, SKIN_TONES, GroupFigures, Thirds, compare_groups
from fusionray.metrics.measure import Columns
from fusionray.metrics.retrieval import Embeddings, Templates, compare, is_nearer_to_source, retrieve

Names = NDArray[np.str_]
Statistic = Callable[..., float]

# Key: which score over which other one, both averaged.
RATIOS = {
    "retrieval_vs_truth": ("retrieval_top1", "retrieval_truth"),
    "sharpness_ratio": ("gradient_energy", "gradient_energy_truth"),
    "pose_error_ratio": ("pose_error", "pose_error_truth"),
    "expression_error_ratio": ("expression_error", "expression_error_truth"),
    "light_error_ratio": ("light_error", "light_error_truth"),
}
# Key: a score, the parameter of the sources that groups them, and the names of the groups.
GAPS: dict[str, tuple[str, str, Thirds]] = {
    "fairness_gap": ("retrieval_top1", "skin_tone", SKIN_TONES),
    "fairness_gap_truth": ("retrieval_truth", "skin_tone", SKIN_TONES),
    "fairness_gap_age": ("retrieval_top1", "age", AGES),
}
# Scores that are reported only as part of a ratio, or that only define groups.
HIDDEN = ("gradient_energy", "gradient_energy_truth", "skin_tone", "age")


@dataclass
class Summary:
    """Values by key, intervals of those that pairs were drawn anew for, and figures by group for each gap."""

    values: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, Interval] = field(default_factory=dict)
    groups: dict[str, GroupFigures] = field(default_factory=dict)

    def add(self, values: Mapping[str, float], intervals: Mapping[str, Interval] | None = None) -> None:
        """Take over what was measured elsewhere; what is no number was not measured."""
        finite = {key: value for key, value in values.items() if math.isfinite(value)}
        self.values |= finite
        self.intervals |= {key: bounds for key, bounds in (intervals or {}).items() if is_known(key, bounds, finite)}


def is_known(key: str, bounds: Interval, values: Mapping[str, float]) -> bool:
    """Tell whether an interval has two ends and a value."""
    return key in values and math.isfinite(bounds.low) and math.isfinite(bounds.high)


def score_pairs(columns: Columns, templates: Templates, source_N: Names) -> Columns:
    """Score each pair, [N] each: the scores that are averaged bear the name of their key.

    `source_N` names the source person of each pair; their templates tell whom a fused face is nearest to.
    """
    fused, source, target = (columns[f"embedding_{name}"] for name in ("fused", "source", "target"))
    scores = {
        "retrieval_top1": finds_source(fused, templates, source_N),
        "nearer_to_source": is_nearer_to_source(fused, source, target),
        "cosine_to_source": compare(fused, source),
        "cosine_to_target": compare(fused, target),
    }
    if "embedding_truth" in columns:
        truth = columns["embedding_truth"]
        scores["retrieval_truth"] = finds_source(truth, templates, source_N)
        scores["nearer_to_source_truth"] = is_nearer_to_source(truth, source, target)
        scores |= {name: columns[name] for name in ("gradient_energy_truth", "skin_tone", "age")}
        scores["gradient_energy"] = columns["gradient_energy_fused"]
        for measure in ("ssim", "psnr", "feature_distance"):
            scores[f"{measure}_to_truth"] = columns[f"{measure}_fused"]
            scores |= {f"{measure}_{name}": columns[f"{measure}_{name}"] for name in ("target", "paste", "average")}
    for group in GROUPS:
        if f"{group}_error_fused" in columns:
            scores[f"{group}_error"] = columns[f"{group}_error_fused"]
            scores |= {name: columns[name] for name in (f"{group}_error_truth", f"{group}_error_target")}
    scores |= {name: columns[name] for name in ("landmark_distance", "face_not_found") if name in columns}
    return {name: np.asarray(score, np.float32) for name, score in scores.items()}


def finds_source(embedding_NE: Embeddings, templates: Templates, source_N: Names) -> NDArray[np.bool_]:
    """Return for which faces the nearest person of the gallery is the source: [N]."""
    found_N: NDArray[np.bool_] = templates.person[retrieve(embedding_NE, templates.template)] == source_N
    return found_N


def summarise(scores: Columns, source_N: Names, *, rounds: int = 0, seed: int = 0) -> Summary:
    """Turn scores into figures; `rounds` resamplings give each its interval, 0 leaves them out.

    People are drawn anew, not pairs: pairs of one source person succeed and fail together.
    """
    summary = Summary()
    for key, (statistic, names) in list_statistics(scores).items():
        chosen = [scores[name] for name in names]
        bounds = {key: bootstrap(statistic, chosen, seed, rounds=rounds, cluster_N=source_N)} if rounds else None
        summary.add({key: statistic(*chosen)}, bounds)
    for key, (name, parameter, groups) in GAPS.items():
        if name in scores and parameter in scores:
            summary.groups[key] = compare_groups(scores[name], scores[parameter], groups)
    return summary


def list_statistics(scores: Columns) -> dict[str, tuple[Statistic, tuple[str, ...]]]:
    """List how each key follows from which scores, for the scores that there are."""
    statistics: dict[str, tuple[Statistic, tuple[str, ...]]] = {
        name: (mean, (name,)) for name in scores if name not in HIDDEN
    }
    statistics |= {key: (ratio, names) for key, names in RATIOS.items()}
    statistics["ssim_gap_closed"] = (gap_closed, ("ssim_to_truth", "ssim_target"))
    for key, (name, parameter, groups) in GAPS.items():
        statistics[key] = (gap_between(groups), (name, parameter))
    return {key: (how, names) for key, (how, names) in statistics.items() if all(name in scores for name in names)}


def mean(score_N: NDArray[Any]) -> float:
    """Average a score over the pairs that have it; nan if none has."""
    known = score_N[~np.isnan(score_N)]
    return float(known.mean(dtype=np.float64)) if len(known) else math.nan


def ratio(first_N: NDArray[Any], second_N: NDArray[Any]) -> float:
    """Divide two means; nan where the second is 0."""
    below = mean(second_N)
    return mean(first_N) / below if below else math.nan


def gap_closed(score_N: NDArray[Any], start_N: NDArray[Any]) -> float:
    """Give the share of the way from where one starts to 1; nan where there is no way."""
    start = mean(start_N)
    return (mean(score_N) - start) / (1 - start) if start < 1 else math.nan


def gap_between(groups: Thirds) -> Statistic:
    """Give the statistic best less worst of some groups."""

    def gap(score_N: NDArray[Any], parameter_N: NDArray[Any]) -> float:
        return compare_groups(score_N, parameter_N, groups).gap

    return gap
