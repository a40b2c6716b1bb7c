"""Face verification (do two pictures show one person?): ROC curve, its area, and the accuracy at the best threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class VerificationResult:
    """The ROC curve over all pairs, from the strictest threshold to the loosest.

    `false_accepts`, `true_accepts`: rates. `thresholds`: the lowest cosine, to six digits, that each point accepts;
    the first is inf and accepts nothing. `accuracy` is the balanced accuracy at the best `threshold`: the mean of true
    accept rate and true reject rate, since pairs of different people are far more numerous.
    """

    accuracy: float
    threshold: float
    auc: float
    false_accepts: NDArray[np.float64]
    true_accepts: NDArray[np.float64]
    thresholds: NDArray[np.float64]

    def true_accept_rate(self, false_accept_rate: float) -> float:
        """Return the true accept rate at a false accept rate (TAR at FAR), interpolated."""
        return float(np.interp(false_accept_rate, self.false_accepts, self.true_accepts))


def verify(embedding_NE: NDArray[np.float32], label_N: NDArray[np.int64]) -> VerificationResult:
    """Compare all pairs of unit-length embeddings by cosine.

    Raises: ValueError without at least one same-person and one different-person pair.
    """
    first, second = np.triu_indices(len(label_N), k=1)
    # A float32 cosine has six significant digits; further digits would order equal scores by the order of the pictures.
    score = (embedding_NE @ embedding_NE.T)[first, second].astype(np.float64).round(6)
    same = label_N[first] == label_N[second]
    if same.all() or not same.any():
        raise ValueError("verification needs at least two people and two pictures of one of them")
    order = np.argsort(-score, kind="stable")
    accepted_same = np.cumsum(same[order])
    accepted_other = np.cumsum(~same[order])
    # Pairs with an equal score are accepted together.
    last_of_score = np.append(np.diff(score[order]) != 0, True)
    true_accepts = np.concatenate([[0.0], accepted_same[last_of_score] / same.sum()])
    false_accepts = np.concatenate([[0.0], accepted_other[last_of_score] / (~same).sum()])
    accuracies = (true_accepts + 1 - false_accepts) / 2
    thresholds = np.concatenate([[np.inf], score[order][last_of_score]])
    best = accuracies.argmax()
    return VerificationResult(
        accuracy=float(accuracies[best]),
        threshold=float(thresholds[best]),
        auc=float(np.trapezoid(true_accepts, false_accepts)),
        false_accepts=false_accepts,
        true_accepts=true_accepts,
        thresholds=thresholds,
    )
