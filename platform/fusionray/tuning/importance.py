"""The importance of settings: functional analysis of variance over the trials of a search. Does not import Ray."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from fusionray.tuning.records import TrialRecord
from fusionray.tuning.sampler import build_study
from fusionray.tuning.space import Space

# With fewer trials the result is random: a forest cannot split three points in a meaningful way.
MIN_TRIALS = 4


def common_images(records: Sequence[TrialRecord]) -> int:
    """Return the largest number of images at which every reporting trial has a report."""
    return min((record.reports[-1].images for record in records if record.reports), default=0)


def measure_importance(space: Space, mode: str, records: Sequence[TrialRecord], *, seed: int = 0) -> dict[str, float]:
    """Divide the variance of the metric among the settings: shares with sum 1, the largest first.

    Trials are compared after as many images as all of them have seen, because stopped trials saw fewer. The result is
    empty with fewer than MIN_TRIALS trials, or if all metrics are equal.

    Source: Hutter et al. 2014, "An Efficient Approach for Assessing Hyperparameter Importance" (fANOVA).
    """
    images = common_images(records)
    compared = []
    for record in records:
        reports = tuple(report for report in record.reports if report.images <= images)
        if reports:
            compared.append(record.model_copy(update={"reports": reports, "status": "finished"}))
    values = {record.reports[-1].value for record in compared}
    if len(compared) < MIN_TRIALS or len(values) < 2:
        return {}
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = build_study(space, mode, compared)
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=seed)
        shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(share) for key, share in sorted(shares.items(), key=lambda item: -item[1])}
