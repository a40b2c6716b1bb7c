from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.kid import KernelInceptionDistance

from fusionray.metrics.realism import frechet_distance, kernel_discrepancy, kernel_distance

Features = NDArray[np.float64]


class GivenFeatures(nn.Module):
    """The network that torchmetrics asks for: what it is given are the features."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, feature_NF: torch.Tensor) -> torch.Tensor:
        return feature_NF


def draw(rows: int, length: int, seed: int, *, shift: float = 0.0, scale: float = 1.0) -> Features:
    """Normal features with correlations of their own."""
    random = np.random.default_rng(seed)
    mixing = np.eye(length) + 0.3 * random.standard_normal((length, length))
    return shift + scale * random.standard_normal((rows, length)) @ mixing


def draw_exactly(mean_F: Features, covariance_FF: Features, rows: int, seed: int) -> Features:
    """Features whose own mean and covariance, not those of their population, are the given ones."""
    raw = np.random.default_rng(seed).standard_normal((rows, len(mean_F)))
    centred = raw - raw.mean(axis=0)
    whitening = np.linalg.inv(np.linalg.cholesky(np.cov(centred.T)))
    return centred @ whitening.T @ np.linalg.cholesky(covariance_FF).T + mean_F


def frechet_of_torchmetrics(first: Features, second: Features) -> float:
    metric = FrechetInceptionDistance(feature=GivenFeatures(first.shape[1]))
    metric.update(torch.from_numpy(first), real=True)
    metric.update(torch.from_numpy(second), real=False)
    return float(metric.compute())


def kernel_of_torchmetrics(first: Features, second: Features, subsets: int, size: int) -> tuple[float, float]:
    with pytest.warns(UserWarning, match="save all extracted features"):
        metric = KernelInceptionDistance(feature=GivenFeatures(first.shape[1]), subsets=subsets, subset_size=size)
    metric.update(torch.from_numpy(first), real=True)
    metric.update(torch.from_numpy(second), real=False)
    mean, deviation = metric.compute()
    return float(mean), float(deviation)


def test_frechet_distance_of_two_gaussians_is_the_closed_form() -> None:
    first = draw_exactly(np.zeros(3), np.diag([1.0, 4.0, 9.0]), 50, seed=0)
    second = draw_exactly(np.array([3.0, 0.0, 4.0]), np.diag([4.0, 4.0, 1.0]), 70, seed=1)
    # Independent features: |m1 - m2|^2 + the squared differences of the standard deviations.
    assert frechet_distance(first, second) == pytest.approx(25 + 1 + 0 + 4)


def test_frechet_distance_of_gaussians_that_lean_differently_is_the_closed_form() -> None:
    one, other = np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([[3.0, -1.0], [-1.0, 1.0]])
    # Of a 2 x 2 matrix, tr of the square root = sqrt(tr + 2 sqrt(det)).
    product = one @ other
    root = np.sqrt(np.trace(product) + 2 * np.sqrt(np.linalg.det(product)))
    first, second = (draw_exactly(np.zeros(2), matrix, 40, seed=2) for matrix in (one, other))
    assert frechet_distance(first, second) == pytest.approx(np.trace(one + other) - 2 * root)


@pytest.mark.parametrize("rows", [400, 10], ids=["many", "fewer-than-features"])
def test_frechet_distance_is_that_of_torchmetrics(rows: int) -> None:
    first, second = draw(rows, 16, seed=3), draw(rows + 5, 16, seed=4, shift=0.4, scale=1.3)
    assert frechet_distance(first, second) == pytest.approx(frechet_of_torchmetrics(first, second), rel=1e-5)


def test_a_set_is_at_no_distance_from_itself_and_at_the_square_of_a_shift_from_itself_moved() -> None:
    features = draw(30, 12, seed=5)
    assert frechet_distance(features, features) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(features, features + 0.5) == pytest.approx(12 * 0.25)


def test_few_pictures_make_frechet_too_large_and_leave_the_kernel_distance_around_the_truth() -> None:
    kind = np.random.default_rng(6).standard_normal((4000, 32))
    few, many = frechet_distance(kind[:40], kind[40:80]), frechet_distance(kind[:2000], kind[2000:])
    assert few > 10 * many
    means = [kernel_distance(kind[i : i + 40], kind[i + 40 : i + 80], seed=0).mean for i in range(0, 4000, 80)]
    assert min(means) < 0 < max(means)
    assert abs(np.mean(means)) < 3 * np.std(means) / np.sqrt(len(means))


def test_kernel_discrepancy_equals_a_count_over_pairs_and_that_of_torchmetrics() -> None:
    first, second = draw(12, 5, seed=7), draw(12, 5, seed=8, shift=0.5)

    def kernel(one: Features, other: Features) -> float:
        return float((one @ other / 5 + 1) ** 3)

    within = [
        kernel(features[i], features[j]) for features in (first, second) for i in range(12) for j in range(12) if i != j
    ]
    between = [kernel(one, other) for one in first for other in second]
    slow = 2 * np.mean(within) - 2 * np.mean(between)
    assert kernel_discrepancy(first, second) == pytest.approx(slow)
    assert kernel_discrepancy(first, second) == pytest.approx(kernel_of_torchmetrics(first, second, 1, 12)[0])


def test_kernel_distance_draws_subsets_as_torchmetrics_does() -> None:
    first, second = draw(200, 6, seed=9), draw(160, 6, seed=10, shift=0.8)
    ours = kernel_distance(first, second, seed=0, num_subsets=400)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mean, deviation = kernel_of_torchmetrics(first, second, 400, 80)
    assert ours.subset_size == 80
    assert ours.mean == pytest.approx(mean, abs=4 * deviation / np.sqrt(400))
    assert ours.deviation == pytest.approx(deviation, rel=0.2)


def test_kernel_distance_is_repeatable_and_bounds_its_subsets() -> None:
    first, second = draw(60, 4, seed=11), draw(60, 4, seed=12)
    assert kernel_distance(first, second, seed=1) == kernel_distance(first, second, seed=1)
    assert kernel_distance(first, second, seed=1) != kernel_distance(first, second, seed=2)
    assert kernel_distance(first, second, seed=1, largest_subset=20).subset_size == 20


def test_features_that_have_no_distance_are_refused() -> None:
    features = draw(8, 4, seed=13)
    with pytest.raises(ValueError, match="one network"):
        frechet_distance(features, features[:, :3])
    with pytest.raises(ValueError, match="needs 2"):
        frechet_distance(features, features[:1])
    with pytest.raises(ValueError, match="needs 4"):
        kernel_distance(features[:3], features, seed=0)
    with pytest.raises(ValueError, match="nan"):
        kernel_distance(features, features * np.nan, seed=0)
