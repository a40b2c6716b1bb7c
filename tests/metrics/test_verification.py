from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from fusionray.metrics.verification import verify


def unit(values: NDArray[np.floating]) -> NDArray[np.float32]:
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def build_clusters(
    people: int, pictures: int, spread: float, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    centres = unit(random.standard_normal((people, 16)))
    label = np.repeat(np.arange(people), pictures)
    return unit(centres[label] + spread * random.standard_normal((len(label), 16))), label


def verify_slowly(embedding: NDArray[np.float32], label: NDArray[np.int64]) -> tuple[float, float]:
    """Accuracy over every threshold, and the area as the share of (same, other) pairs in the right order."""
    same, other = [], []
    for i, j in combinations(range(len(label)), 2):
        score = float(embedding[i].astype(np.float64) @ embedding[j].astype(np.float64))
        (same if label[i] == label[j] else other).append(score)
    best = 0.5
    for threshold in [*same, *other]:
        accepts = np.mean([score >= threshold - 1e-9 for score in same])
        rejects = np.mean([score < threshold - 1e-9 for score in other])
        best = max(best, (accepts + rejects) / 2)
    won = [1.0 if s > o + 1e-9 else 0.5 if abs(s - o) <= 1e-9 else 0.0 for s in same for o in other]
    return float(best), float(np.mean(won))


@pytest.mark.parametrize("spread", [0.1, 0.3, 1.0])
def test_accuracy_and_area_equal_those_of_a_count_over_all_pairs(spread: float) -> None:
    embedding, label = build_clusters(6, 5, spread, seed=1)
    result = verify(embedding, label)
    accuracy, area = verify_slowly(embedding, label)
    assert result.accuracy == pytest.approx(accuracy, abs=2e-3)
    assert result.auc == pytest.approx(area, abs=2e-3)


def test_each_point_of_the_curve_is_a_count_at_its_threshold() -> None:
    embedding, label = build_clusters(6, 5, 0.5, seed=3)
    result = verify(embedding, label)
    pairs = list(combinations(range(len(label)), 2))
    score = np.array([round(float(embedding[i] @ embedding[j]), 6) for i, j in pairs])
    same = np.array([label[i] == label[j] for i, j in pairs])
    assert result.thresholds[0] == np.inf
    assert (np.diff(result.thresholds) < 0).all()
    points = list(zip(result.thresholds, result.true_accepts, result.false_accepts, strict=True))
    for threshold, true_accepts, false_accepts in points[:: len(points) // 25]:
        accepted = score >= threshold - 1.5e-6
        assert accepted[same].mean() == pytest.approx(true_accepts, abs=0.02)
        assert accepted[~same].mean() == pytest.approx(false_accepts, abs=0.005)
    accepted = score >= result.threshold - 1.5e-6
    assert (accepted[same].mean() + 1 - accepted[~same].mean()) / 2 == pytest.approx(result.accuracy, abs=0.01)


def test_well_separated_people_are_verified_perfectly() -> None:
    result = verify(np.repeat(np.eye(4, dtype=np.float32), 3, axis=0), np.repeat(np.arange(4), 3))
    assert result.accuracy == 1.0
    assert result.auc == 1.0
    assert result.true_accept_rate(0.01) == 1.0


def test_noise_verifies_at_chance() -> None:
    embedding, _ = build_clusters(300, 1, 1.0, seed=0)
    result = verify(embedding, np.random.default_rng(1).integers(0, 5, 300))
    assert result.auc == pytest.approx(0.5, abs=0.02)
    assert result.accuracy == pytest.approx(0.5, abs=0.03)


def test_a_constant_encoder_verifies_at_chance() -> None:
    # Equal scores are accepted together: counted one by one, the order of the pictures would decide.
    result = verify(np.ones((12, 1), np.float32), np.repeat(np.arange(3), 4))
    assert result.auc == 0.5
    assert result.accuracy == 0.5
    # So are scores that differ by rounding alone: here it happens to favour pictures of one person.
    label = np.repeat(np.arange(9), 4)
    rounded = (1 - 2e-8 * label[:, None]).astype(np.float32)
    assert len(np.unique(rounded)) > 1
    assert verify(rounded, label).auc == 0.5


def test_the_curve_runs_from_nothing_accepted_to_everything() -> None:
    result = verify(*build_clusters(6, 5, 0.5, seed=2))
    assert (result.false_accepts[0], result.true_accepts[0]) == (0, 0)
    assert (result.false_accepts[-1], result.true_accepts[-1]) == (1, 1)
    assert (np.diff(result.false_accepts) >= 0).all()
    assert (np.diff(result.true_accepts) >= 0).all()


@pytest.mark.parametrize("label", [[0, 0, 0], [0, 1, 2]])
def test_without_both_kinds_of_pairs_there_is_nothing_to_verify(label: list[int]) -> None:
    with pytest.raises(ValueError, match="at least two people"):
        verify(np.eye(3, dtype=np.float32), np.array(label))
