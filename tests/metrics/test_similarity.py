from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure

from fusionray.metrics.similarity import feature_distance, gradient_energy, region_psnr, region_ssim

SIZE = 24


def draw_pictures(seed: int, rows: int = 3) -> tuple[Tensor, Tensor]:
    """Two sets of pictures in [-1,1] float64, the second a noisy copy of the first."""
    random = torch.Generator().manual_seed(seed)
    coarse = torch.rand(rows, 3, 6, 6, generator=random, dtype=torch.float64) * 2 - 1
    first = F.interpolate(coarse, size=SIZE, mode="bilinear")
    noise = torch.randn(first.shape, generator=random, dtype=torch.float64)
    return first, (first + 0.2 * noise).clamp(-1, 1)


def everywhere(image: Tensor) -> Tensor:
    return torch.ones_like(image[:, :1])


def left_half(image: Tensor) -> Tensor:
    region = torch.zeros_like(image[:, :1])
    region[..., : image.shape[-1] // 2] = 1
    return region


def ssim_slowly(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """SSIM of every pixel of two planes in [0,1]: weighted moments of the window around it, mirrored at the edges."""
    offset = np.arange(-5, 6)
    line = np.exp(-(offset**2) / (2 * 1.5**2))
    weight = np.outer(line, line) / line.sum() ** 2
    one, other = (np.pad(plane, 5, mode="reflect") for plane in (first, second))
    result = np.empty_like(first)
    for y in range(first.shape[0]):
        for x in range(first.shape[1]):
            a, b = one[y : y + 11, x : x + 11], other[y : y + 11, x : x + 11]
            mean_a, mean_b = (weight * a).sum(), (weight * b).sum()
            var_a, var_b = (weight * (a - mean_a) ** 2).sum(), (weight * (b - mean_b) ** 2).sum()
            covariance = (weight * (a - mean_a) * (b - mean_b)).sum()
            result[y, x] = ((2 * mean_a * mean_b + 0.01**2) * (2 * covariance + 0.03**2)) / (
                (mean_a**2 + mean_b**2 + 0.01**2) * (var_a + var_b + 0.03**2)
            )
    return result


def test_ssim_everywhere_is_the_plain_one() -> None:
    first, second = draw_pictures(0)
    measured = region_ssim(first, second, everywhere(first))
    plain = structural_similarity_index_measure((first + 1) / 2, (second + 1) / 2, data_range=1.0, reduction="none")
    assert 0.1 < measured.min() < measured.max() < 0.9
    torch.testing.assert_close(measured, plain)


def test_ssim_in_a_region_is_the_weighted_mean_of_a_count_over_windows() -> None:
    first, second = draw_pictures(1, rows=2)
    region = torch.rand(2, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    slow = []
    for row in range(2):
        planes = zip(((first[row] + 1) / 2).numpy(), ((second[row] + 1) / 2).numpy(), strict=True)
        map_HW = np.mean([ssim_slowly(one, other) for one, other in planes], axis=0)
        slow.append(np.average(map_HW, weights=region[row, 0].numpy()))
    np.testing.assert_allclose(region_ssim(first, second, region).numpy(), slow, rtol=1e-9)


def test_ssim_does_not_see_what_lies_far_outside_the_region() -> None:
    first, second = draw_pictures(3)
    changed = second.clone()
    changed[..., SIZE // 2 + 5 :] = 1
    region = left_half(first)
    torch.testing.assert_close(region_ssim(first, changed, region), region_ssim(first, second, region))
    assert (region_ssim(first, changed, 1 - region) < region_ssim(first, second, 1 - region)).all()


def test_ssim_in_single_precision_is_good_to_four_digits() -> None:
    first, second = draw_pictures(4)
    double = region_ssim(first, second, left_half(first))
    single = region_ssim(first.float(), second.float(), left_half(first).float())
    torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-5)


def test_equal_pictures_have_the_best_value_of_every_metric() -> None:
    image, _ = draw_pictures(5)
    torch.testing.assert_close(region_ssim(image, image, left_half(image)), torch.ones(3, dtype=torch.float64))
    assert region_psnr(image, image, left_half(image)).tolist() == [math.inf] * 3
    assert feature_distance([image], [image]).tolist() == [0, 0, 0]


@pytest.mark.parametrize("measure", [region_ssim, region_psnr])
def test_a_row_without_a_region_is_nan_and_leaves_the_others_alone(
    measure: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> None:
    first, second = draw_pictures(6)
    region = left_half(first)
    whole = measure(first, second, region)
    region[1] = 0
    measured = measure(first, second, region)
    assert measured[1].isnan()
    assert torch.equal(measured[[0, 2]], whole[[0, 2]])


def test_psnr_everywhere_is_the_plain_one() -> None:
    first, second = draw_pictures(7)
    plain = peak_signal_noise_ratio(
        (first + 1) / 2, (second + 1) / 2, data_range=1.0, reduction="none", dim=(1, 2, 3)
    ).double()
    torch.testing.assert_close(region_psnr(first, second, everywhere(first)), plain, rtol=1e-6, atol=0)


def test_psnr_of_a_tenth_of_the_range_is_20_decibels_where_the_region_looks() -> None:
    first = torch.zeros(1, 3, SIZE, SIZE)
    second = first.clone()
    second[..., : SIZE // 2] = 0.2
    region = left_half(first)
    assert region_psnr(first, second, region).item() == pytest.approx(20, abs=1e-4)
    # Half the weight is on pixels that are equal: half the mean squared error.
    assert region_psnr(first, second, everywhere(first)).item() == pytest.approx(20 + 10 * math.log10(2), abs=1e-4)


def test_gradient_energy_of_a_slope_is_its_square() -> None:
    slope = torch.linspace(-1, 1, SIZE, dtype=torch.float64).expand(1, 3, SIZE, SIZE)
    step = 1 / (SIZE - 1)
    for image in (slope, slope.transpose(2, 3)):
        assert gradient_energy(image, left_half(image)).item() == pytest.approx(step**2)
    diagonal = (slope + slope.transpose(2, 3)) / 2
    assert gradient_energy(diagonal, left_half(diagonal)).item() == pytest.approx(2 * (step / 2) ** 2)


def test_gradient_energy_sees_colours_as_the_eye_does() -> None:
    slope = torch.linspace(-1, 1, SIZE, dtype=torch.float64).expand(1, 1, SIZE, SIZE)
    for channel, share in enumerate((0.299, 0.587, 0.114)):
        image = torch.zeros(1, 3, SIZE, SIZE, dtype=torch.float64)
        image[:, channel : channel + 1] = slope
        assert gradient_energy(image, everywhere(image)).item() == pytest.approx((share / (SIZE - 1)) ** 2)


def test_gradient_energy_of_noise_is_four_times_its_variance_and_less_after_blurring() -> None:
    noise = torch.randn(2, 1, 128, 128, generator=torch.Generator().manual_seed(8)).expand(2, 3, 128, 128) * 0.2
    energy = gradient_energy(noise, everywhere(noise))
    torch.testing.assert_close(energy, torch.full((2,), 4 * 0.1**2), rtol=0.05, atol=0)
    blurred = F.avg_pool2d(noise, 3, stride=1, padding=1)
    assert (gradient_energy(blurred, everywhere(noise)) < energy / 3).all()


def test_gradient_energy_counts_each_pixel_by_the_region() -> None:
    slope = torch.linspace(-1, 1, SIZE).expand(1, 3, SIZE, SIZE).clone()
    slope[..., SIZE // 2 + 1 :] = 0.5
    region = left_half(slope)
    assert gradient_energy(slope, region).item() == pytest.approx(1 / (SIZE - 1) ** 2, rel=1e-4)
    assert gradient_energy(slope[..., SIZE // 2 + 1 :], everywhere(slope)[..., SIZE // 2 + 1 :]).item() == 0
    assert gradient_energy(slope, torch.zeros_like(region)).isnan().all()


def test_feature_distance_equals_a_count_over_places() -> None:
    random = torch.Generator().manual_seed(9)
    first, second = (
        [torch.randn(2, channels, side, side + 1, generator=random) for channels, side in ((5, 4), (7, 2))]
        for _ in range(2)
    )
    slow = torch.zeros(2)
    for row in range(2):
        for one, other in zip(first, second, strict=True):
            _, _, height, width = one.shape
            for y in range(height):
                for x in range(width):
                    a, b = one[row, :, y, x], other[row, :, y, x]
                    slow[row] += (a / a.norm() - b / b.norm()).square().sum() / (height * width * len(first))
    torch.testing.assert_close(feature_distance(first, second), slow)


def test_feature_distance_compares_directions_and_not_lengths() -> None:
    maps = torch.randn(2, 6, 3, 3, generator=torch.Generator().manual_seed(10))
    assert feature_distance([maps], [maps * 7]).abs().max() < 1e-6
    torch.testing.assert_close(feature_distance([maps], [-maps]), torch.full((2,), 4.0))
    unit = torch.eye(2)[:, :, None, None]
    torch.testing.assert_close(feature_distance([unit], [unit.flip(0)]), torch.full((2,), 2.0))


def test_features_of_different_depth_have_no_distance() -> None:
    maps = torch.ones(1, 2, 2, 2)
    with pytest.raises(ValueError, match="at least one layer"):
        feature_distance([], [])
    with pytest.raises(ValueError, match="shorter"):
        feature_distance([maps, maps], [maps])
