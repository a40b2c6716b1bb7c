"""All that the renderer computes of a batch of people before the first pixel: pose, light, shapes, colour of the skin.

Legend: row scalars [N, 1, 1]; colours [N, 3, 1, 1], linear.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.geometry import Pose, build_pose
from fusionray.data.synthetic.graphics.light import Light, build_screen_light, light_in_head_frame
from fusionray.data.synthetic.graphics.palette import skin_colour
from fusionray.data.synthetic.parameters.definitions import ATTRIBUTE_NAMES, IDENTITY_NAMES, ParameterColumns
from fusionray.data.synthetic.shapes.hairstyles import HairShape, build_hair
from fusionray.data.synthetic.shapes.head import HeadShape, build_head
from fusionray.data.synthetic.shapes.layer_ellipses import build_ellipses
from fusionray.data.synthetic.shapes.nose_and_mouth import MouthShape, NoseShape, build_mouth, build_nose
from fusionray.data.synthetic.shapes.relief_hills import build_hills

T = TypeVar("T")

# The share of the head's roll that the body follows.
_BODY_LEAN = 0.35


@dataclass(frozen=True)
class PersonModel:
    """The parameters of each row, and the pose, light, shapes and colours that follow from them.

    `body_angle` is the part of the head's roll that the body does not follow, in radians; `hills` are the coefficients
    of the face's relief; `ellipses` bound each layer on the screen.
    """

    identity: ParameterColumns
    attributes: ParameterColumns
    pose: Pose
    screen_light: Light
    light: Light
    head: HeadShape
    nose: NoseShape
    mouth: MouthShape
    hair: HairShape
    skin: Tensor
    hills: Tensor
    body_angle: Tensor
    ellipses: dict[str, Tensor]


def build_person_model(identity_NI: Tensor, attributes_NA: Tensor) -> PersonModel:
    """Build the models of N people from identity parameters [N, I] and attribute parameters [N, A].

    Raises: ValueError if one has another number of columns, or both have different numbers of rows.
    """
    check_rows(identity_NI, attributes_NA)
    identity = ParameterColumns.from_tensor(identity_NI, IDENTITY_NAMES)
    attributes = ParameterColumns.from_tensor(attributes_NA, ATTRIBUTE_NAMES)
    pose, screen_light, head = build_pose(attributes), build_screen_light(attributes), build_head(identity, attributes)
    mouth, hair = build_mouth(identity, attributes, head), build_hair(attributes, head)
    body_angle = torch.deg2rad(attributes["roll"]) * (1.0 - _BODY_LEAN)
    return PersonModel(
        identity=identity,
        attributes=attributes,
        pose=pose,
        screen_light=screen_light,
        light=light_in_head_frame(screen_light, pose),
        head=head,
        nose=build_nose(identity, head),
        mouth=mouth,
        hair=hair,
        skin=skin_colour(identity["skin_tone"], identity["skin_warmth"]),
        hills=build_hills(identity, attributes, head),
        body_angle=body_angle,
        ellipses=build_ellipses(pose, head, mouth, hair, body_angle),
    )


def check_rows(identity_NI: Tensor, attributes_NA: Tensor) -> None:
    """Check that each person has one row of attributes.

    Raises: ValueError if the numbers of rows differ.
    """
    if identity_NI.shape[:1] != attributes_NA.shape[:1]:
        raise ValueError(f"attributes: {len(attributes_NA)} rows for {len(identity_NI)} identities; give one row each")


def slice_rows(model: T, start: int, stop: int) -> T:
    """Return the same tree of dataclasses, tuples and dicts for rows start .. stop - 1, as views."""
    part: T = _take(model, start, stop)
    return part


def _take(value: Any, start: int, stop: int) -> Any:
    if isinstance(value, Tensor):
        return value[start:stop]
    if isinstance(value, tuple):
        return tuple(_take(item, start, stop) for item in value)
    if isinstance(value, dict):
        return {key: _take(item, start, stop) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{field.name: _take(getattr(value, field.name), start, stop) for field in fields(value)})
    return value
