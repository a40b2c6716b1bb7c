"""Aggregate columns into metrics: scores of each pair, then means, ratios and gaps with confidence intervals.

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
from fusionray.metrics.fairness import AGES, SKIN_TONES, GroupMeans, TertileNames, compare_groups, compare_tones
from fusionray.metrics.fusion_metrics import MetricColumns
from fusionray.metrics.hard_cases import PREFIX as CASE_PREFIX
from fusionray.metrics.hard_cases import compare_cases, find_extreme_cases
from fusionray.metrics.retrieval import Embeddings, Templates, cosine_similarity, is_nearer_to_source, retrieve

Names = NDArray[np.str_]
Statistic = Callable[..., float]

# Metric key -> the two scores whose means are divided.
RATIOS = {
    "retrieval_vs_truth": ("retrieval_top1", "retrieval_truth"),
    "retrieval_vs_source": ("retrieval_top1", "retrieval_source"),
    "sharpness_ratio": ("gradient_energy", "gradient_energy_truth"),
    "pose_error_ratio": ("pose_error", "pose_error_truth"),
    "expression_error_ratio": ("expression_error", "expression_error_truth"),
    "light_error_ratio": ("light_error", "light_error_truth"),
    "skin_difference": ("skin_step_fused", "skin_step_fused_target"),
    "skin_difference_truth": ("skin_step_truth", "skin_step_truth_target"),
    "skin_difference_source": ("skin_step_source", "skin_step_fused_target"),
    "seam_step": ("edge_step_fused", "edge_step_fused_target"),
    "seam_step_truth": ("edge_step_truth", "edge_step_truth_target"),
    "seam_step_source": ("edge_step_source", "edge_step_fused_target"),
}
# Metric key -> a score, the parameter that groups the source people, and the names of the groups.
GAPS: dict[str, tuple[str, str, TertileNames]] = {
    "fairness_gap": ("retrieval_top1", "skin_tone", SKIN_TONES),
    "fairness_gap_truth": ("retrieval_truth", "skin_tone", SKIN_TONES),
    "fairness_gap_age": ("retrieval_top1", "age", AGES),
}
# Scores that are reported only as part of a ratio, or that only define groups.
HIDDEN = (
    *("gradient_energy", "gradient_energy_truth", "skin_tone", "age"),
    *("tone_source", "tone_target"),
    *(
        f"{kind}_step_{name}"
        for kind in ("skin", "edge")
        for name in ("fused", "fused_target", "truth", "truth_target", "source")
    ),
)
# Metric keys that are reported for hard cases, too; of the last, less is better.
BY_CASES = ("retrieval_top1", "nearer_to_source", "ssim_gap_closed", "landmark_distance")
# Metric keys, of `RATIOS`, that are reported for each pair of tones, too.
BY_TONES = tuple(f"{key}{of}" for key in ("skin_difference", "seam_step") for of in ("", "_truth", "_source"))


@dataclass
class Summary:
    """Metric values and confidence intervals by key, and the means by group of each gap."""

    values: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, Interval] = field(default_factory=dict)
    groups: dict[str, GroupMeans] = field(default_factory=dict)

    def add(self, values: Mapping[str, float], intervals: Mapping[str, Interval] | None = None) -> None:
        """Add values and their intervals; values and intervals that are not finite are left out."""
        finite = {key: value for key, value in values.items() if math.isfinite(value)}
        self.values |= finite
        self.intervals |= {
            key: bounds
            for key, bounds in (intervals or {}).items()
            if key in finite and all(map(math.isfinite, bounds))
        }


def score_pairs(columns: MetricColumns, templates: Templates, source_N: Names) -> MetricColumns:
    """Score each pair: float32 [N] by name. A score that is averaged has the name of its metric key.

    `source_N` names the source person of each pair; `templates` are those of the gallery.
    """
    fused, source, target = (columns[f"embedding_{name}"] for name in ("fused", "source", "target"))
    scores = {
        "retrieval_top1": retrieves_source(fused, templates, source_N),
        "retrieval_source": retrieves_source(source, templates, source_N),
        "nearer_to_source": is_nearer_to_source(fused, source, target),
        "cosine_to_source": cosine_similarity(fused, source),
        "cosine_to_target": cosine_similarity(fused, target),
    }
    if "embedding_truth" in columns:
        truth = columns["embedding_truth"]
        scores["retrieval_truth"] = retrieves_source(truth, templates, source_N)
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
    measured = ("landmark_distance", "face_not_found", "unchanged_skin_share")
    scores |= {name: columns[name] for name in measured if name in columns}
    if "light_target" in columns:
        likeness = cosine_similarity(source, target)
        scores |= find_extreme_cases(likeness, columns["light_target"], columns["detail_target"])
    scores |= {name: columns[name] for name in columns if name.startswith(CASE_PREFIX)}
    scores |= {name: columns[name] for name in HIDDEN if name in columns and name not in scores}
    return {name: np.asarray(score, np.float32) for name, score in scores.items()}


def retrieves_source(embedding_NE: Embeddings, templates: Templates, source_N: Names) -> NDArray[np.bool_]:
    """Return whether the nearest person of the gallery is the source: bool [N]."""
    found_N: NDArray[np.bool_] = templates.person[retrieve(embedding_NE, templates.template)] == source_N
    return found_N


def summarise(scores: MetricColumns, source_N: Names, *, rounds: int = 0, seed: int = 0) -> Summary:
    """Aggregate scores into metrics, with bootstrap intervals of `rounds` resamplings; 0: no intervals.

    The bootstrap resamples source people, not pairs, because pairs of one source person are not independent.
    """
    summary = Summary()
    statistics = list_statistics(scores)
    for key, (statistic, names) in statistics.items():
        chosen = [scores[name] for name in names]
        bounds = {key: bootstrap(statistic, chosen, seed, rounds=rounds, cluster_N=source_N)} if rounds else None
        summary.add({key: statistic(*chosen)}, bounds)
    for key, (name, parameter, groups) in GAPS.items():
        if name in scores and parameter in scores:
            summary.groups[key] = compare_groups(scores[name], scores[parameter], groups)
    for key in BY_CASES if any(name.startswith(CASE_PREFIX) for name in scores) else ():
        if key in statistics:
            statistic, names = statistics[key]
            summary.groups[key] = compare_cases(scores, statistic, names, lower_is_better=key == "landmark_distance")
    if "tone_source" in scores:
        for key in BY_TONES:
            names = (*RATIOS[key], "tone_source", "tone_target")
            if all(name in scores for name in names):
                summary.groups[key] = compare_tones(*(scores[name] for name in names))
    return summary


def list_statistics(scores: MetricColumns) -> dict[str, tuple[Statistic, tuple[str, ...]]]:
    """Return, for each metric that the scores allow, its statistic and the names of the scores that it takes."""
    statistics: dict[str, tuple[Statistic, tuple[str, ...]]] = {
        name: (mean, (name,)) for name in scores if name not in HIDDEN and not name.startswith(CASE_PREFIX)
    }
    statistics |= {key: (ratio, names) for key, names in RATIOS.items()}
    statistics["ssim_gap_closed"] = (gap_closed, ("ssim_to_truth", "ssim_target"))
    for key, (name, parameter, groups) in GAPS.items():
        statistics[key] = (gap_between(groups), (name, parameter))
    return {key: (how, names) for key, (how, names) in statistics.items() if all(name in scores for name in names)}


def mean(score_N: NDArray[Any]) -> float:
    """Average a score over the pairs where it is not nan; nan if there are none."""
    known = score_N[~np.isnan(score_N)]
    return float(known.mean(dtype=np.float64)) if len(known) else math.nan


def ratio(first_N: NDArray[Any], second_N: NDArray[Any]) -> float:
    """Divide the means of two scores over the pairs where neither is nan; nan if there are none, or the second is 0."""
    known_N = ~(np.isnan(first_N) | np.isnan(second_N))
    below = mean(second_N[known_N])
    return mean(first_N[known_N]) / below if below else math.nan


def gap_closed(score_N: NDArray[Any], start_N: NDArray[Any]) -> float:
    """Return (mean(score) - mean(start)) / (1 - mean(start)); nan if mean(start) is 1 or more."""
    start = mean(start_N)
    return (mean(score_N) - start) / (1 - start) if start < 1 else math.nan


def gap_between(groups: TertileNames) -> Statistic:
    """Return the statistic "best group minus worst group"."""

    def gap(score_N: NDArray[Any], parameter_N: NDArray[Any]) -> float:
        return compare_groups(score_N, parameter_N, groups).gap

    return gap
