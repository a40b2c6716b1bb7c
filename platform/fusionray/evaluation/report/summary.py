"""The summary of an evaluation: over the pairs, the crops they are made from, and the clips."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusionray.evaluation.dataset import EvalDataset
from fusionray.evaluation.work_items import ItemKind
from fusionray.metrics.aggregate import Summary, mean, score_pairs, summarise
from fusionray.metrics.confidence import bootstrap
from fusionray.metrics.fusion_metrics import MetricColumns
from fusionray.metrics.pair_plan import RowIndices
from fusionray.metrics.realism import frechet_distance, kernel_distance
from fusionray.metrics.retrieval import build_templates
from fusionray.metrics.verification import VerificationResult, verify

FALSE_ACCEPT_RATE = 0.01
# Fewest pictures of a set for a kernel distance.
MIN_PICTURES = 4


@dataclass(frozen=True, eq=False)
class EvalSummary:
    """Figures by key, scores of each pair, and how well the evaluator itself verifies real crops."""

    summary: Summary
    scores: MetricColumns
    verification: VerificationResult | None


def summarise_evaluation(
    dataset: EvalDataset,
    results: Mapping[ItemKind, tuple[RowIndices, MetricColumns]],
    *,
    with_features: bool,
    rounds: int,
    seed: int,
) -> EvalSummary:
    """Summarise the columns of all workers; `with_features`: the user's feature network was used too."""
    _, pairs = results["pairs"]
    gallery, gallery_columns = results["crops"]
    names = np.array(dataset.crops.people)[dataset.crops.person]
    source_N = names[dataset.plan.pairs[:, 0]]
    templates = build_templates(gallery_columns["embedding"], names[gallery])
    scores = score_pairs(pairs, templates, source_N)
    summary = summarise(scores, source_N, rounds=rounds, seed=seed)
    real, real_columns = describe_real(dataset.plan.pairs, pairs, gallery, gallery_columns)
    verification = verify_real(real_columns["embedding"], dataset.crops.person[real])
    if verification is not None:
        summary.add(
            {
                "verification_accuracy": verification.accuracy,
                "verification_auc": verification.auc,
                "verification_tar": verification.true_accept_rate(FALSE_ACCEPT_RATE),
            }
        )
    summary.add(compare_distributions(pairs, real_columns, with_features=with_features, seed=seed))
    _, clips = results["clips"]
    for key, values in clips.items():
        bounds = {key: bootstrap(mean, [values], seed, rounds=rounds)} if rounds and len(values) > 1 else None
        summary.add({key: mean(values)}, bounds)
    summary.add({"held_out_pairs": len(source_N), "held_out_people": dataset.plan.num_people})
    return EvalSummary(summary, scores, verification)


def describe_real(
    pairs_M2: RowIndices, pairs: MetricColumns, gallery: RowIndices, gallery_columns: MetricColumns
) -> tuple[RowIndices, MetricColumns]:
    """Collect the evaluators' columns of every real crop in use, each crop once; return crop numbers and columns."""
    numbers = np.concatenate([gallery, pairs_M2[:, 0], pairs_M2[:, 1]])
    unique, first = np.unique(numbers, return_index=True)
    return unique, {
        what: np.concatenate([values, pairs[f"{what}_source"], pairs[f"{what}_target"]])[first]
        for what, values in gallery_columns.items()
    }


def verify_real(embedding_NE: NDArray[np.float32], person_N: RowIndices) -> VerificationResult | None:
    """Verify real crops with the evaluator; None if no person has two of them."""
    if len(np.unique(person_N)) == len(person_N):
        return None
    return verify(embedding_NE, person_N)


def compare_distributions(
    pairs: MetricColumns, real: MetricColumns, *, with_features: bool, seed: int
) -> dict[str, float]:
    """Return FID and KID of the fused pictures, and of the true fusions, to the real pictures."""
    what, suffix = ("features", "") if with_features else ("embedding", "_embedding")
    # Entries of a unit vector are small, but the kernel distance expects features whose entries vary by about 1.
    scale = 1.0 if with_features else math.sqrt(real[what].shape[1])
    real_NF = real[what] * scale
    if min(len(real_NF), len(pairs[f"{what}_fused"])) < MIN_PICTURES:
        return {}
    distances: dict[str, float] = {}
    for picture, ending in (("fused", ""), ("truth", "_truth")):
        if f"{what}_{picture}" in pairs:
            picture_NF = pairs[f"{what}_{picture}"] * scale
            distances[f"fid{suffix}{ending}"] = frechet_distance(picture_NF, real_NF)
            distances[f"kid{suffix}{ending}"] = kernel_distance(picture_NF, real_NF, seed).mean
    return distances
