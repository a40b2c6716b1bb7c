"""Affine maps of places and colours, compared with what torch and plain arithmetic say."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from fusionray.data.synthetic import render_true_fusion
from fusionray.recipes.affine import (
    build_colours,
    build_grid,
    build_views,
    compose_views,
    jitter_views,
    recolour,
    unit_to_signed,
    warp_affine,
)
from fusionray.recipes.arcface_crop import ArcFaceCrop, crop_to_arcface_affine
from fusionray.recipes.augmentation import Augmentation, AugmentationConfig
from fusionray.recipes.face_fusion.identity_perturbation import IdentityPerturbation, IdentityPerturbationConfig
from tests.support.tiny_fusion import build_pairs


def test_the_grid_is_torch_s_own() -> None:
    torch.manual_seed(0)
    view = torch.randn(3, 2, 3)
    torch.testing.assert_close(build_grid(view, 7), F.affine_grid(view, [3, 1, 7, 7], align_corners=False))


def test_one_view_serves_all_pictures() -> None:
    torch.manual_seed(0)
    picture, view = torch.rand(3, 2, 9, 9), torch.randn(1, 2, 3) * 0.5
    torch.testing.assert_close(warp_affine(picture, view, 6), warp_affine(picture, view.expand(3, 2, 3), 6))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_moves_no_pixel_and_blurs_no_colour(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    picture, view = torch.rand(2, 3, 64, 64), torch.randn(2, 2, 3) * 0.5
    colours = build_colours(torch.rand(2) + 0.5, torch.rand(2) + 0.5, torch.rand(2))
    exact = recolour(warp_affine(picture, view, 112), colours, torch.rand(2))
    torch.manual_seed(0)
    picture, view = torch.rand(2, 3, 64, 64), torch.randn(2, 2, 3) * 0.5
    with torch.autocast("cpu", dtype=dtype):
        colours = build_colours(torch.rand(2) + 0.5, torch.rand(2) + 0.5, torch.rand(2))
        cast = recolour(warp_affine(picture, view, 112), colours, torch.rand(2))
        composed = compose_views(view, view)
    assert torch.equal(cast, exact)
    assert torch.equal(composed, compose_views(view, view))


class MatrixProducts(TorchDispatchMode):
    """Lists the matrix products that are computed, which a GPU may compute in TF32."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in ("mm", "bmm", "addmm", "baddbmm", "addbmm", "matmul", "linear"):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def test_no_position_goes_through_a_matrix_product() -> None:
    pairs = build_pairs(2)
    image = torch.rand(2, 3, 64, 64)
    with MatrixProducts() as products:
        ArcFaceCrop(crop_to_arcface_affine("arcface_128"))(image, jitter_views(image))
        render_true_fusion(pairs)
        Augmentation(AugmentationConfig(brightness=0, contrast=0, saturation=0, hue=0))(image)
        IdentityPerturbation(IdentityPerturbationConfig()).warp(image, image[:, :1])
    assert products.found == []


def test_one_view_after_another_is_their_product() -> None:
    torch.manual_seed(0)
    outer, inner = torch.randn(3, 2, 3), torch.randn(3, 2, 3)
    last = torch.tensor([0.0, 0.0, 1.0]).expand(3, 1, 3)
    product = torch.cat([outer, last], dim=1) @ torch.cat([inner, last], dim=1)
    torch.testing.assert_close(compose_views(outer, inner), product[:, :2])


@pytest.mark.parametrize(("flip", "quarters"), [(1.0, 1), (1.0, 2), (-1.0, 0), (-1.0, 3)])
def test_quarter_turns_and_mirrors_are_exact(flip: float, quarters: int) -> None:
    picture = torch.rand(1, 2, 8, 8)
    angle = torch.tensor([quarters * math.pi / 2])
    view = build_views(torch.tensor([flip]), angle, torch.ones(1), torch.zeros(1, 2))
    # The view says where a pixel comes from: first it is turned back, then mirrored.
    wanted = (picture.flip(-1) if flip < 0 else picture).rot90(quarters, dims=(2, 3))
    torch.testing.assert_close(warp_affine(picture, view, 8), wanted, rtol=0, atol=1e-5)


def test_scale_and_shift_say_where_a_pixel_comes_from() -> None:
    view = build_views(torch.ones(1), torch.zeros(1), torch.tensor([0.5]), torch.tensor([[0.25, -0.5]]))
    torch.testing.assert_close(view[0], torch.tensor([[0.5, 0.0, 0.25], [0.0, 0.5, -0.5]]))


def test_colours_without_a_change_are_the_identity() -> None:
    one, zero = torch.ones(2), torch.zeros(2)
    torch.testing.assert_close(build_colours(one, one, zero), torch.eye(3).expand(2, 3, 3))


def test_a_third_of_a_turn_moves_red_to_green_to_blue() -> None:
    one = torch.ones(1)
    (turned,) = build_colours(one, one, one * math.tau / 3)
    for colour in range(3):
        torch.testing.assert_close(turned @ torch.eye(3)[colour], torch.eye(3)[(colour + 1) % 3], rtol=0, atol=1e-6)


def test_no_saturation_leaves_the_mean_of_the_colours() -> None:
    torch.manual_seed(0)
    one, picture = torch.ones(2), torch.rand(2, 3, 4, 4)
    grey = recolour(picture, build_colours(one, torch.zeros(2), one), torch.tensor([0.0, 0.5]))
    wanted = picture.mean(dim=1, keepdim=True).expand_as(picture) + torch.tensor([0.0, 0.5])[:, None, None, None]
    torch.testing.assert_close(grey, wanted)


def test_composed_views_equal_one_after_the_other() -> None:
    torch.manual_seed(0)
    outer, inner, point = torch.randn(2, 2, 3), torch.randn(2, 2, 3), torch.randn(2, 2, 1)

    def apply(view: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return view[:, :, :2] @ at + view[:, :, 2:]

    torch.testing.assert_close(apply(compose_views(outer, inner), point), apply(outer, apply(inner, point)))


def test_signed_views_map_the_signed_square_as_unit_views_map_the_unit_square() -> None:
    torch.manual_seed(0)
    view, point = torch.randn(2, 2, 3), torch.rand(2, 2, 1)
    unit = view[:, :, :2] @ point + view[:, :, 2:]
    signed_view = unit_to_signed(view)
    signed = signed_view[:, :, :2] @ (2 * point - 1) + signed_view[:, :, 2:]
    torch.testing.assert_close(signed, 2 * unit - 1)


def test_jittered_views_keep_the_middle_near_and_differ_by_row() -> None:
    torch.manual_seed(0)
    view = jitter_views(torch.empty(64, 3, 8, 8))
    middle = view[:, :, :2] @ torch.full((2, 1), 0.5) + view[:, :, 2:]
    assert (middle - 0.5).abs().max() <= 0.031
    assert len(view.unique(dim=0)) == 64
