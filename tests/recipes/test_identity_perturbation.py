"""What a disguise changes, and what it leaves alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fusionray.recipes.face_fusion.identity_perturbation import IdentityPerturbation, IdentityPerturbationConfig

NOTHING = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0, "warp": 0.0}
SIZE = 32


def build_ramp(count: int) -> Tensor:
    """Draw pictures whose colour tells the place: red across, green down."""
    axis = (torch.arange(SIZE) + 0.5) / SIZE * 2 - 1
    picture = torch.stack([axis.expand(SIZE, SIZE), axis[:, None].expand(SIZE, SIZE), torch.zeros(SIZE, SIZE)])
    return picture.expand(count, 3, SIZE, SIZE).clone()


def build_region(count: int) -> Tensor:
    region = torch.zeros(count, 1, SIZE, SIZE)
    region[:, :, 8:24, 8:24] = 1
    return region


@pytest.mark.parametrize("change", ["brightness", "contrast", "saturation", "hue", "warp"])
def test_each_change_stays_within_the_region_and_differs_from_row_to_row(change: str) -> None:
    torch.manual_seed(0)
    image, region = build_ramp(2), build_region(2)
    disguised = IdentityPerturbation(IdentityPerturbationConfig(**{**NOTHING, change: 0.2}))(image, region)
    inside = region.expand_as(image) == 1
    assert torch.equal(disguised[~inside], image[~inside])
    assert (disguised - image)[inside].abs().max() > 0.02
    assert (disguised[0] - disguised[1]).abs().max() > 0.02


def test_no_change_leaves_the_picture() -> None:
    image = build_ramp(1)
    assert torch.equal(IdentityPerturbation(IdentityPerturbationConfig(**NOTHING))(image, build_region(1)), image)


@pytest.mark.parametrize("most", [0.03, 0.1])
def test_a_warp_moves_features_smoothly_and_by_no_more_than_it_may(most: float) -> None:
    torch.manual_seed(1)
    image, region = build_ramp(8), torch.ones(8, 1, SIZE, SIZE)
    disguised = IdentityPerturbation(IdentityPerturbationConfig(**{**NOTHING, "warp": most}))(image, region)
    moved = (disguised - image)[:, :2, 4:-4, 4:-4] / 2  # in sides of the picture; the border repeats itself
    assert 0.5 * most < moved.abs().max() < 1.4 * most  # between its knots a cubic swings a little further
    steps = moved.diff(dim=3).abs().max()
    assert steps < 4 * most * 6 / SIZE  # no more than a cubic between opposite neighbours, six knots to a side
