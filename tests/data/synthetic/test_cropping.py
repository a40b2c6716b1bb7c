"""What attributes a crop shows: its picture, turned."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fusionray.data.prepare.crop import unit_view
from fusionray.data.synthetic import (
    ATTRIBUTE_NAMES,
    attributes_in_crop,
    neutral_attributes,
    project_landmarks,
    render_with_region,
    sample_identities,
)
from fusionray.faces.align import estimate_alignment, load_template

PICTURE_SIZE = 256
CENTRE = torch.tensor([0.5, 0.48])
AZIMUTH, ELEVATION = ATTRIBUTE_NAMES.index("light_azimuth"), ATTRIBUTE_NAMES.index("light_elevation")


def pose(count: int, **values: float | list[float]) -> Tensor:
    attributes = neutral_attributes(count)
    for name, value in values.items():
        attributes[:, ATTRIBUTE_NAMES.index(name)] = torch.as_tensor(value)
    return attributes


def read(attributes: Tensor, name: str) -> Tensor:
    return attributes[:, ATTRIBUTE_NAMES.index(name)]


def align(identity: Tensor, attributes: Tensor) -> Tensor:
    """Align crops as prepare does, by the exact five points; returns their views [N,2,3]."""
    template = load_template("arcface_128")
    points_N52 = project_landmarks(identity, attributes).numpy() * PICTURE_SIZE - 0.5
    views = [unit_view(estimate_alignment(points, template, 128), 128, PICTURE_SIZE) for points in points_N52]
    return torch.from_numpy(np.stack(views))


def turn(degrees: float) -> Tensor:
    """Build the view of a crop that covers the picture, turned clockwise about the head, [1,2,3]."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    linear = torch.tensor([[cos, -sin], [sin, cos]])
    return torch.cat([linear, (CENTRE - linear @ CENTRE)[:, None]], dim=1)[None]


def test_a_rolled_head_stands_upright_in_its_aligned_crop() -> None:
    identity = sample_identities(5, 2)
    attributes = pose(5, roll=[-20.0, -8.0, 0.0, 8.0, 20.0])
    seen = attributes_in_crop(attributes, align(identity, attributes))
    assert read(seen, "roll").abs().max() < 0.5


def test_the_roll_in_a_crop_is_the_angle_of_the_eyes_in_it() -> None:
    identity = sample_identities(4, 3)
    attributes = pose(4, roll=[-15.0, 0.0, 5.0, 20.0])
    view = torch.cat([turn(degrees) for degrees in (10.0, -25.0, 5.0, -170.0)])
    across_N2 = project_landmarks(identity, attributes).diff(dim=1)[:, 0]
    inverse_N22 = torch.linalg.inv(view[:, :, :2])
    in_crop_N2 = (inverse_N22 @ across_N2[:, :, None])[:, :, 0]
    angle_N = torch.rad2deg(torch.atan2(in_crop_N2[:, 1], in_crop_N2[:, 0]))
    torch.testing.assert_close(read(attributes_in_crop(attributes, view), "roll"), angle_N, rtol=0, atol=1e-2)


def test_a_crop_shows_the_face_that_its_own_attributes_draw() -> None:
    identity = sample_identities(3, 8)
    attributes = pose(
        3,
        yaw=[-20.0, 0.0, 15.0],
        roll=[15.0, -10.0, 20.0],
        light_azimuth=[60.0, -50.0, 70.0],
        light_elevation=[40.0, 60.0, 5.0],
    )
    view = torch.cat([turn(degrees) for degrees in (15.0, 10.0, -15.0)])
    seen = attributes_in_crop(attributes, view)

    def difference(other: Tensor) -> float:
        """Compare the crop with a picture drawn from attributes, where both show the face."""
        crop, region = render_with_region(identity, attributes, 64, view)
        picture, other_region = render_with_region(identity, other, 64)
        both = (region > 0.99) & (other_region > 0.99)
        assert both.float().mean() > 0.05
        return float(((crop - picture).abs() * both).sum() / (3 * both.sum()))

    with_light_of_the_picture = seen.clone()
    with_light_of_the_picture[:, [AZIMUTH, ELEVATION]] = attributes[:, [AZIMUTH, ELEVATION]]
    assert difference(seen) < 0.005
    assert difference(with_light_of_the_picture) > 5 * difference(seen)


def test_a_crop_that_is_not_turned_shows_what_the_picture_shows() -> None:
    attributes = pose(1, roll=12.0, light_azimuth=-60.0, light_elevation=50.0, smile=0.7)
    view = torch.tensor([[[0.4, 0.0, 0.3], [0.0, 0.4, 0.25]]])
    torch.testing.assert_close(attributes_in_crop(attributes, view), attributes, rtol=0, atol=1e-3)
