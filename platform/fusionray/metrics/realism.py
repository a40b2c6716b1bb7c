"""FID and KID: distances between two sets of pictures in the features of a network that was trained on neither.

Both compare distributions, not single pictures, and depend on the features and on the number of pictures: compare
values of the same network and the same numbers of pictures only.

Shape suffixes: N pictures, M the pictures of the other set, F features, S the pictures of a subset.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Features = NDArray[np.floating]


class KernelDistance(NamedTuple):
    """Mean and standard deviation of the kernel distance over subsets of `subset_size` pictures."""

    mean: float
    deviation: float
    subset_size: int


def frechet_distance(first_NF: Features, second_MF: Features) -> float:
    """Return the Frechet distance between Gaussians fitted to two sets of features (FID with Inception features).

    |m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)), in float64. The estimate is biased upwards: with fewer pictures than
    several times F, two sets of the same distribution are far from 0.

    Raises: ValueError with fewer than two pictures, features of different length, or features that are not finite.

    Source: Heusel et al. 2017, "GANs trained by a two time-scale update rule", eq. 6.
    """
    first, second = check_features(first_NF, second_MF, min_rows=2)
    first_root, second_root = covariance_root(first), covariance_root(second)
    # With C = R'R the traces are squared norms, and the eigenvalues of C1 C2 are the squared singular values of
    # R1 R2'. This avoids the square root of a matrix that is singular with few pictures.
    common = np.linalg.svd(first_root @ second_root.T, compute_uv=False).sum()
    between_means = np.square(first.mean(axis=0) - second.mean(axis=0)).sum()
    distance = between_means + np.square(first_root).sum() + np.square(second_root).sum() - 2 * common
    return max(0.0, float(distance))


def covariance_root(feature_NF: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a matrix R of at most F rows with R'R = the covariance of the features."""
    centred_NF = feature_NF - feature_NF.mean(axis=0)
    root: NDArray[np.float64] = np.linalg.qr(centred_NF, mode="r") / np.sqrt(len(feature_NF) - 1)
    return root


def kernel_distance(
    first_NF: Features, second_MF: Features, seed: int, *, num_subsets: int = 100, largest_subset: int = 1000
) -> KernelDistance:
    """Average the kernel distance over random subsets of two sets of features (KID with Inception features).

    The estimate is unbiased: with few pictures it varies more around the true value, so the mean may be negative. A
    subset has half the pictures of the smaller set, at most `largest_subset`: subsets of full size would all be equal.

    Raises: ValueError with fewer than four pictures, features of different length, or features that are not finite.

    Source: Binkowski et al. 2018, "Demystifying MMD GANs", section 4.
    """
    first, second = check_features(first_NF, second_MF, min_rows=4)
    size = min(largest_subset, len(first) // 2, len(second) // 2)
    random = np.random.default_rng(seed)
    distances = [
        kernel_discrepancy(
            random.choice(first, size, replace=False, shuffle=False),
            random.choice(second, size, replace=False, shuffle=False),
        )
        for _ in range(num_subsets)
    ]
    return KernelDistance(float(np.mean(distances)), float(np.std(distances)), size)


def kernel_discrepancy(first_SF: NDArray[np.float64], second_SF: NDArray[np.float64]) -> float:
    """Estimate the squared maximum mean discrepancy of two sets of equal size with k(x, y) = (x.y / F + 1)^3.

    Source: Gretton et al. 2012, "A kernel two-sample test", lemma 6 (unbiased).
    """
    size, length = first_SF.shape
    within = 0.0
    for feature_SF in (first_SF, second_SF):
        kernel_SS = (feature_SF @ feature_SF.T / length + 1) ** 3
        # Without the diagonal: comparing pictures with themselves would bias the estimate.
        within += (kernel_SS.sum() - np.trace(kernel_SS)) / (size * (size - 1))
    between = ((first_SF @ second_SF.T / length + 1) ** 3).mean()
    return float(within - 2 * between)


def check_features(
    first_NF: Features, second_MF: Features, min_rows: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Check two sets of features, and return them as float64.

    Raises: ValueError.
    """
    first, second = np.asarray(first_NF, np.float64), np.asarray(second_MF, np.float64)
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"features of length {first.shape[1]} and {second.shape[1]}: take both from one network")
    if min(len(first), len(second)) < min_rows:
        raise ValueError(f"sets of {len(first)} and {len(second)} pictures: a distance needs {min_rows} in each")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ValueError("features contain nan or infinity: check the network that computes them")
    return first, second
