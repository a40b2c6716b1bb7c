from __future__ import annotations

import numpy as np
import pytest
import torch

from fusionray.data import synthetic
from fusionray.data.prepare.crop import unit_view
from fusionray.faces.align import estimate_alignment, load_template, transform_points
from fusionray.metrics.landmarks import CropLandmarks, landmark_acceleration, landmark_distance

SIDE = 128


@pytest.mark.parametrize(("name", "size"), [("arcface_112", 64), ("arcface_128", 64), ("ffhq_512", 128)])
def test_the_mesh_finds_the_points_of_aligned_faces(name: str, size: int) -> None:
    template = load_template(name)
    people, looks = synthetic.sample_identities(12, 3), synthetic.sample_attributes(12, 4)
    matrices = [
        estimate_alignment(points.astype(np.float32), template, size)
        for points in synthetic.project_landmarks(people, looks).numpy() * SIDE - 0.5
    ]
    view = torch.from_numpy(np.stack([unit_view(matrix, size, SIDE) for matrix in matrices]))
    crops = (synthetic.render(people, looks, size, view) * 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()
    exact = [
        transform_points(points * SIDE - 0.5, matrix)
        for points, matrix in zip(synthetic.project_landmarks(people, looks).numpy(), matrices, strict=True)
    ]
    distance = landmark_distance(CropLandmarks(template, size).locate(crops), np.stack(exact))
    assert np.isfinite(distance).all()
    assert distance.mean() < 0.12  # of the distance between the eyes


def test_a_picture_of_nothing_has_no_points() -> None:
    crops = np.full((2, 64, 64, 3), 128, np.uint8)
    crops[1] = np.random.default_rng(0).integers(0, 256, (64, 64, 3))
    assert np.isnan(CropLandmarks(load_template("arcface_128"), 64).locate(crops)).all()


def test_distances_are_in_units_of_the_eye_distance() -> None:
    points = load_template("arcface_112").points(112)[None]
    eyes = float(np.linalg.norm(points[0, 0] - points[0, 1]))
    assert landmark_distance(points + np.float32([3, 4]), points) == pytest.approx(5 / eyes, rel=1e-5)
    assert np.isnan(landmark_distance(points * np.nan, points)).all()


def test_landmarks_that_shake_accelerate_and_those_that_move_evenly_do_not() -> None:
    still = np.tile(np.arange(20, dtype=np.float64)[:, None, None], (1, 5, 2))
    assert landmark_acceleration(still) == 0
    shaken = still + np.array([0.5, -0.5])[np.arange(20) % 2][:, None, None]
    assert landmark_acceleration(shaken) == pytest.approx(2 * np.sqrt(2))
    # A frame without a face is left out, with the differences that need it.
    shaken[10] = np.nan
    assert landmark_acceleration(shaken) == pytest.approx(2 * np.sqrt(2))
    assert np.isnan(landmark_acceleration(shaken[9:12]))
