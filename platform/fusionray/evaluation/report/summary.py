"""The summary of an evaluation: over the pairs, the crops they are made from, and the clips."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusionray.evaluation.dataset import EvalDataset
from fusionray.evaluation.workload import Kind
from fusionray.metrics.aggregate import Summary, mean, score_pairs, summarise
from fusionray.metrics.confidence import bootstrap
from fusionray.metrics.measure import Columns
from fusionray.metrics.protocol import Rows
from fusionray.metrics.realism import frechet_distance, kernel_distance
from fusionray.metrics.retrieval import build_templates
from fusionray.metrics.verification import VerificationResult, verify

FALSE_ACCEPT_RATE = 0.01
# A kernel distance needs so many pictures in each set.
LEAST_PICTURES = 4


@dataclass(frozen=True, eq=False)
class EvalSummary:
    """Figures by key, scores of each pair, and how well the evaluator itself verifies real crops."""

    summary: Summary
    scores: Columns
    verification: VerificationResult | None


def sum_up(
    dataset: EvalDataset, answers: Mapping[Kind, tuple[Rows, Columns]], *, with_features: bool, rounds: int, seed: int
) -> EvalSummary:
    """Sum up what workers measured; `with_features`: pictures were described by the user's network as well."""
    _, pairs = answers["pairs"]
    gallery, gallery_columns = answers["crops"]
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
    _, clips = answers["clips"]
    for key, values in clips.items():
        bounds = {key: bootstrap(mean, [values], seed, rounds=rounds)} if rounds and len(values) > 1 else None
        summary.add({key: mean(values)}, bounds)
    summary.add({"held_out_pairs": len(source_N), "held_out_people": dataset.plan.num_people})
    return EvalSummary(summary, scores, verification)


def describe_real(pairs_M2: Rows, pairs: Columns, gallery: Rows, gallery_columns: Columns) -> tuple[Rows, Columns]:
    """Gather the evaluators' columns of every real crop in use, once each; return crop numbers and columns."""
    numbers = np.concatenate([gallery, pairs_M2[:, 0], pairs_M2[:, 1]])
    unique, first = np.unique(numbers, return_index=True)
    return unique, {
        what: np.concatenate([values, pairs[f"{what}_source"], pairs[f"{what}_target"]])[first]
        for what, values in gallery_columns.items()
    }


def verify_real(embedding_NE: NDArray[np.float32], person_N: Rows) -> VerificationResult | None:
    """Verify real crops with the evaluator; None if no person has two of them."""
    if len(np.unique(person_N)) == len(person_N):
        return None
    return verify(embedding_NE, person_N)


def compare_distributions(pairs: Columns, real: Columns, *, with_features: bool, seed: int) -> dict[str, float]:
    """Measure the distance of the distribution of fused pictures from the real ones; and that of true fusions."""
    what, suffix = ("features", "") if with_features else ("embedding", "_judge")
    # Entries of a unit vector are small; the distances are made for features whose entries vary by about 1.
    scale = 1.0 if with_features else math.sqrt(real[what].shape[1])
    wanted = real[what] * scale
    if min(len(wanted), len(pairs[f"{what}_fused"])) < LEAST_PICTURES:
        return {}
    distances: dict[str, float] = {}
    for picture, ending in (("fused", ""), ("truth", "_truth")):
        if f"{what}_{picture}" in pairs:
            found = pairs[f"{what}_{picture}"] * scale
            distances[f"fid{suffix}{ending}"] = frechet_distance(found, wanted)
            distances[f"kid{suffix}{ending}"] = kernel_distance(found, wanted, seed).mean
    return distances
