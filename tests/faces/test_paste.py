"""Pasting a crop changes only the pixels of the picture that it was cut from."""

from __future__ import annotations

import numpy as np
import pytest

from fusionray.faces.align import invert_affine, region_under, transform_points, warp_crop
from fusionray.faces.blending.mask import soft_box_mask
from fusionray.faces.blending.paste import paste_crop
from fusionray.faces.face import Matrix


def smooth_picture(height: int = 240, width: int = 320) -> np.ndarray:
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [np.sin(columns / 17 + rows / 29), np.cos(columns / 23 - rows / 13), np.sin((columns + rows) / 31)]
    return (127.5 + 100 * np.stack(waves, axis=-1)).astype(np.uint8)


def crop_matrix(scale: float, degrees: float, centre: tuple[float, float], size: int) -> Matrix:
    angle = np.deg2rad(degrees)
    linear = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.concatenate([linear, (np.full(2, (size - 1) / 2) - linear @ np.array(centre))[:, None]], axis=1)


@pytest.mark.parametrize("scale", [0.5, 0.8, 1.0, 1.7, 3.1])
@pytest.mark.parametrize("degrees", [0, 17, -63, 180])
def test_pasting_an_unchanged_crop_leaves_the_picture_nearly_unchanged(scale: float, degrees: float) -> None:
    picture = smooth_picture()
    matrix = crop_matrix(scale, degrees, (160.3, 120.8), 96)
    pasted = picture.copy()
    paste_crop(pasted, warp_crop(picture, matrix, 96), soft_box_mask(96), matrix)
    difference = np.abs(pasted.astype(int) - picture)
    assert difference.max() <= 6
    assert difference.mean() < 0.5


@pytest.mark.parametrize("centre", [(160, 120), (3, 5), (319, 239), (-20, 100)])
def test_the_picture_keeps_its_bytes_outside_the_crop(centre: tuple[float, float]) -> None:
    picture = smooth_picture()
    size, matrix = 64, crop_matrix(0.9, 30, centre, 64)
    pasted = picture.copy()
    paste_crop(pasted, np.zeros((size, size, 3), np.uint8), np.ones((size, size), np.float32), matrix)
    rows, columns = np.mgrid[0:240, 0:320]
    in_crop = transform_points(np.stack([columns, rows], axis=-1).reshape(-1, 2), matrix).reshape(240, 320, 2)
    outside = ((in_crop < -1) | (in_crop > size)).any(-1)
    inside = ((in_crop > 1) & (in_crop < size - 2)).all(-1)
    assert np.array_equal(pasted[outside], picture[outside])
    assert inside.sum() > 100
    assert not pasted[inside].any()


@pytest.mark.parametrize("scale", [2.0, 1.2, 0.8, 0.3, 0.06])
def test_a_blend_is_what_its_formula_says(scale: float) -> None:
    """Of two flat colours under a mask that rises from left to right, which any interpolation keeps."""
    size, pasted = 64, np.full((480, 640, 3), (40, 90, 250), np.uint8)
    colour, matrix = np.array([200, 90, 10]), crop_matrix(scale, 12, (320, 240), 64)
    mask = np.tile(np.linspace(0.0, 1.0, size, dtype=np.float32), (size, 1))
    paste_crop(pasted, np.broadcast_to(colour.astype(np.uint8), (size, size, 3)), mask, matrix)
    rows, columns = np.mgrid[0:480, 0:640]
    in_crop = transform_points(np.stack([columns, rows], axis=-1).reshape(-1, 2), matrix).reshape(480, 640, 2)
    inside = ((in_crop > 2) & (in_crop < size - 3)).all(-1)
    weight = (in_crop[inside][:, :1] / (size - 1)).astype(np.float64)
    exact = np.array([40, 90, 250]) * (1 - weight) + colour * weight
    assert inside.sum() > 500
    assert np.abs(pasted[inside] - exact).max() < 3.5


def test_where_the_mask_is_zero_the_picture_keeps_its_bytes() -> None:
    picture = smooth_picture()
    matrix = crop_matrix(1.3, -20, (150, 100), 64)
    pasted = picture.copy()
    paste_crop(pasted, np.full((64, 64, 3), 255, np.uint8), np.zeros((64, 64), np.float32), matrix)
    assert np.array_equal(pasted, picture)


def test_a_crop_outside_the_picture_changes_nothing() -> None:
    picture = smooth_picture()
    matrix = crop_matrix(1.0, 0, (5_000, 5_000), 64)
    left, top, right, bottom = region_under(matrix, 64, 64, np.zeros((240, 320, 3), np.uint8))
    assert right <= left or bottom <= top
    pasted = picture.copy()
    paste_crop(pasted, np.zeros((64, 64, 3), np.uint8), np.ones((64, 64), np.float32), matrix)
    assert np.array_equal(pasted, picture)


@pytest.mark.parametrize("scale", [0.9, 0.4, 0.15])
def test_a_pasted_mark_lands_where_the_inverse_map_says(scale: float) -> None:
    picture = np.zeros((480, 640, 3), np.uint8)
    matrix = crop_matrix(scale, 25, (330, 230), 64)
    crop = np.zeros((64, 64, 3), np.uint8)
    crop[20:23, 40:43] = 255
    paste_crop(picture, crop, np.ones((64, 64), np.float32), matrix)
    weight = picture[..., 0].astype(np.float64)
    rows, columns = np.mgrid[0:480, 0:640]
    centre = [(weight * columns).sum() / weight.sum(), (weight * rows).sum() / weight.sum()]
    assert centre == pytest.approx(transform_points(np.array([[41.0, 21.0]]), invert_affine(matrix))[0], abs=0.1)


def test_a_mask_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="mask"):
        paste_crop(smooth_picture(), np.zeros((64, 64, 3), np.uint8), np.ones((32, 32), np.float32), np.eye(2, 3))


@pytest.mark.parametrize("size", [32, 64, 128, 256, 512])
def test_the_soft_mask_is_full_inside_and_exactly_zero_at_its_edge(size: int) -> None:
    mask = soft_box_mask(size, margin=0.05, blur=0.2)
    assert mask.shape == (size, size)
    assert mask.dtype == np.float32
    assert mask[size // 2, size // 2] == pytest.approx(1.0)
    assert max(mask[0].max(), mask[-1].max(), mask[:, 0].max(), mask[:, -1].max()) == 0.0
    profile = mask[size // 2, : size // 2]
    assert (np.diff(profile) >= -1e-6).all()
    assert np.diff(profile).max() < 0.5
    assert np.array_equal(mask, mask[::-1]) or np.allclose(mask, mask[::-1], atol=1e-5)


def test_a_mask_without_a_middle_is_refused() -> None:
    with pytest.raises(ValueError, match="margin, blur"):
        soft_box_mask(64, margin=0.3, blur=0.3)
