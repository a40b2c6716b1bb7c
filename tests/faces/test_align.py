"""Alignment: templates, similarity fit, crops at any scale."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from fusionray.faces.align import (
    affine_scale,
    enlarge,
    estimate_alignment,
    fit_similarity,
    invert_affine,
    load_template,
    template_to_template,
    transform_points,
    warp_crop,
)
from fusionray.faces.face import Matrix

TEMPLATES = ("arcface_112", "arcface_112_v1", "arcface_128", "ffhq_512", "head_256", "mtcnn_512")


def similarity(scale: float, degrees: float, shift: tuple[float, float]) -> Matrix:
    angle = np.deg2rad(degrees)
    cosine, sine = scale * np.cos(angle), scale * np.sin(angle)
    return np.array([[cosine, -sine, shift[0]], [sine, cosine, shift[1]]])


def smooth_picture(height: int, width: int) -> np.ndarray:
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [np.sin(columns / 17 + rows / 29), np.cos(columns / 23 - rows / 13), np.sin((columns + rows) / 31)]
    return (127.5 + 100 * np.stack(waves, axis=-1)).astype(np.uint8)


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_give_their_published_points_at_the_native_size(name: str) -> None:
    template = load_template(name)
    points = template.points(template.native_size)
    assert points.shape == (5, 2)
    assert points.dtype == np.float32
    first = {
        "arcface_112": (38.2946, 51.6963),
        "arcface_112_v1": (39.73, 51.138),
        "arcface_128": (46.2946, 51.6963),
        "ffhq_512": (192.98138, 239.94708),
        "head_256": (106.652, 107.485),
        "mtcnn_512": (187.20187, 239.27705),
    }
    assert points[0] == pytest.approx(first[name], abs=1e-3)
    assert points[0, 0] < points[1, 0]
    assert points[3, 0] < points[4, 0]


def test_an_unknown_template_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=f"'mouth_64'.*{', '.join(TEMPLATES)}"):
        load_template("mouth_64")


def test_the_112_crop_is_a_window_of_the_128_crop() -> None:
    wide, narrow = load_template("arcface_128"), load_template("arcface_112")
    window = template_to_template(wide, 128, narrow, 112)
    assert window == pytest.approx(np.array([[1, 0, -8], [0, 1, 0]]), abs=1e-5)
    picture = smooth_picture(300, 260)
    landmarks = transform_points(wide.points(128), similarity(1.3, 8, (40, 50)))
    large = warp_crop(picture, estimate_alignment(landmarks, wide, 128), 128)
    small = warp_crop(picture, estimate_alignment(landmarks, narrow, 112), 112)
    assert np.abs(large[0:112, 8:120].astype(int) - small).max() <= 2


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_crop_of_twice_the_size_reduced_by_area_is_the_crop(name: str) -> None:
    template = load_template(name)
    picture = smooth_picture(400, 400)
    landmarks = transform_points(template.points(128), similarity(1.5, -10, (90, 70)))
    small = warp_crop(picture, estimate_alignment(landmarks, template, 128), 128)
    large = warp_crop(picture, estimate_alignment(landmarks, template, 256), 256)
    reduced = cv2.resize(large, (128, 128), interpolation=cv2.INTER_AREA)
    assert np.abs(reduced.astype(int) - small).mean() < 1.0


def test_the_fit_recovers_a_known_similarity_exactly() -> None:
    points = load_template("arcface_112").points(112)
    for truth in (similarity(0.3, 75, (-5, 9)), similarity(12, 179, (300, -4)), similarity(1, 0, (0, 0))):
        assert fit_similarity(points, transform_points(points, truth)) == pytest.approx(truth, rel=1e-4, abs=1e-3)


def test_the_fit_is_the_least_squares_optimum_and_never_mirrors() -> None:
    generator = np.random.default_rng(4)
    for _ in range(20):
        source, target = generator.normal(size=(5, 2)), generator.normal(size=(5, 2))
        matrix = fit_similarity(source, target)
        assert np.linalg.det(matrix[:, :2]) > 0
        # Without mirroring the problem is linear in (a, b, x, y) of [[a, -b, x], [b, a, y]].
        ones, zeros = np.ones(5), np.zeros(5)
        system = np.concatenate(
            [
                np.stack([source[:, 0], -source[:, 1], ones, zeros], axis=1),
                np.stack([source[:, 1], source[:, 0], zeros, ones], axis=1),
            ]
        )
        a, b, x, y = np.linalg.lstsq(system, np.concatenate([target[:, 0], target[:, 1]]), rcond=None)[0]
        assert matrix == pytest.approx(np.array([[a, -b, x], [b, a, y]]), abs=1e-6)


def test_points_that_coincide_are_refused() -> None:
    with pytest.raises(ValueError, match="coincide"):
        estimate_alignment(np.ones((5, 2), np.float32), load_template("arcface_112"), 112)


def test_the_inverse_undoes_the_map() -> None:
    matrix = similarity(0.7, 33, (12, -8))
    points = np.random.default_rng(0).uniform(0, 500, (30, 2))
    there_and_back = transform_points(transform_points(points, matrix), invert_affine(matrix))
    assert there_and_back == pytest.approx(points, abs=1e-2)
    assert affine_scale(matrix) == pytest.approx(0.7)


def test_strong_shrinking_averages_instead_of_skipping_pixels() -> None:
    fine = np.zeros((1024, 1024, 3), np.uint8)
    fine[::2, ::2] = 255
    fine[1::2, 1::2] = 255  # a chequerboard: every honest reduction of it is middle grey
    crop = warp_crop(fine, similarity(0.11, 20, (2, -3)), 100)
    middle = crop[35:65, 35:65]
    assert middle.mean() == pytest.approx(127.5, abs=2)
    assert middle.std() < 4


@pytest.mark.parametrize("offset", [(0, 0), (3, 5), (37, 100)])
def test_a_crop_at_an_eighth_has_the_means_of_blocks(offset: tuple[int, int]) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (301, 407, 3), np.uint8)
    left, top = offset
    # Pixel q of the crop covers the pixels 8 q to 8 q + 7 of the picture, from the offset on.
    matrix = np.array([[1 / 8, 0, (0.5 - left) / 8 - 0.5], [0, 1 / 8, (0.5 - top) / 8 - 0.5]])
    crop = warp_crop(picture, matrix, 20).astype(np.float64)
    blocks = picture[top : top + 160, left : left + 160].reshape(20, 8, 20, 8, 3).mean(axis=(1, 3))
    # On a grid that lies between the blocks, the means of blocks are means of neighbours, too.
    tolerance = 2.0 if (left % 8, top % 8) == (0, 0) else 40.0
    assert np.abs(crop - blocks).max() < tolerance
    assert crop.mean() == pytest.approx(blocks.mean(), abs=1.5)


def test_the_shrunk_crop_lies_where_the_matrix_says() -> None:
    picture = np.zeros((900, 900, 3), np.uint8)
    cv2.circle(picture, (400, 500), 40, (255, 255, 255), -1)
    matrix = similarity(0.13, 15, (60, -20))
    weight = warp_crop(picture, matrix, 128)[..., 0].astype(np.float64)
    rows, columns = np.mgrid[0:128, 0:128]
    centre = [(weight * columns).sum() / weight.sum(), (weight * rows).sum() / weight.sum()]
    assert centre == pytest.approx(transform_points(np.array([[400.0, 500.0]]), matrix)[0], abs=0.05)


def test_beyond_the_picture_the_edge_is_repeated() -> None:
    picture = np.full((50, 50, 3), 77, np.uint8)
    assert np.unique(warp_crop(picture, similarity(1, 0, (200, 200)), 64)).tolist() == [77]


@pytest.mark.parametrize("scale", [2.0, 3.4, 7.0])
@pytest.mark.parametrize("centre", [(60, 50), (3, 2), (119, 99), (300, 400)])
def test_an_enlarged_part_is_that_of_the_enlarged_picture(scale: float, centre: tuple[int, int]) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (100, 120, 3), np.uint8)
    matrix = similarity(scale, 20.0, (0.0, 0.0))
    matrix[:, 2] = (32, 32) - matrix[:, :2] @ centre
    factor = min(int(scale), 4)
    whole, rest = enlarge(picture, matrix, factor)
    expected = cv2.warpAffine(whole, rest, (64, 64), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    assert np.abs(warp_crop(picture, matrix, 64).astype(int) - expected).max() <= 1
