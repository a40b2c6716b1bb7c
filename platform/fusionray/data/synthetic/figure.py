"""Everything about the people of a batch that is known before the first pixel: pose, light, shapes, skin.

Legend: row scalars [N, 1, 1]; colours [N, 3, 1, 1], linear.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from fusionray.data.synthetic.features import MouthShape, NoseShape, build_mouth, build_nose
from fusionray.data.synthetic.geometry import Pose, build_pose
from fusionray.data.synthetic.hairstyles import HairShape, build_hair
from fusionray.data.synthetic.head import HeadShape, build_head
from fusionray.data.synthetic.hills import build_hills
from fusionray.data.synthetic.light import Light, build_screen_light, turn_to_head
from fusionray.data.synthetic.palette import skin_colour
from fusionray.data.synthetic.parameters import ATTRIBUTE_NAMES, IDENTITY_NAMES, Columns
from fusionray.data.synthetic.windows import build_ellipses

T = TypeVar("T")

# The share of the head's roll that the body follows.
_BODY_LEAN = 0.35


@dataclass(frozen=True)
class Figure:
    """Who (identity) and how (attributes) of each row, and all that follows from them.

    `body_angle` in radians is how far the body stands back from the head's roll; `hills` are the coefficients of the
    face's relief; `ellipses` tell where on the screen each layer can reach.
    """

    who: Columns
    how: Columns
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


def build_figure(identity: Tensor, attributes: Tensor) -> Figure:
    """Build the figures of identity [N, I] under attributes [N, A]."""
    who, how = Columns.named(identity, IDENTITY_NAMES), Columns.named(attributes, ATTRIBUTE_NAMES)
    pose, screen_light, head = build_pose(how), build_screen_light(how), build_head(who, how)
    mouth, hair = build_mouth(who, how, head), build_hair(how, head)
    body_angle = torch.deg2rad(how["roll"]) * (1.0 - _BODY_LEAN)
    return Figure(
        who=who,
        how=how,
        pose=pose,
        screen_light=screen_light,
        light=turn_to_head(screen_light, pose),
        head=head,
        nose=build_nose(who, head),
        mouth=mouth,
        hair=hair,
        skin=skin_colour(who["skin_tone"], who["skin_warmth"]),
        hills=build_hills(who, how, head),
        body_angle=body_angle,
        ellipses=build_ellipses(pose, head, mouth, hair, body_angle),
    )


def take_rows(figure: T, start: int, stop: int) -> T:
    """Return the same tree of dataclasses, tuples and dicts for rows start .. stop alone; nothing is copied."""
    part: T = _take(figure, start, stop)
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
