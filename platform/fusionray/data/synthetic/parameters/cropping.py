"""Convert the attributes of a picture to those of its aligned crop: alignment rotates the picture."""

from __future__ import annotations

import torch
from torch import Tensor

from fusionray.data.synthetic.parameters.definitions import ATTRIBUTE_NAMES

_ROLL, _AZIMUTH, _ELEVATION = map(ATTRIBUTE_NAMES.index, ("roll", "light_azimuth", "light_elevation"))


def attributes_in_crop(attributes_NA: Tensor, view_N23: Tensor) -> Tensor:
    """Return the attributes as the crops show them: the rotation of the crop changes roll and light direction.

    `view_N23` is a similarity that maps the unit square of the crop to that of the picture. Angles are degrees,
    clockwise positive. Returns [N,A] float32, columns ATTRIBUTE_NAMES. Yaw, pitch, expression and gaze are relative to
    the head and do not change; shift, scale and background describe the whole picture and are not converted.
    """
    attributes_NA = attributes_NA.to(torch.float32)
    turn_N = torch.atan2(view_N23[:, 1, 0], view_N23[:, 0, 0])
    roll_N = attributes_NA[:, _ROLL] - torch.rad2deg(turn_N)
    azimuth_N, elevation_N = torch.deg2rad(attributes_NA[:, [_AZIMUTH, _ELEVATION]]).unbind(1)
    # Direction to the light: x to the image right, y down, z towards the viewer.
    x, y, z = azimuth_N.sin() * elevation_N.cos(), -elevation_N.sin(), azimuth_N.cos() * elevation_N.cos()
    across, down = x * turn_N.cos() + y * turn_N.sin(), y * turn_N.cos() - x * turn_N.sin()
    seen_NA = attributes_NA.clone()
    seen_NA[:, _ROLL] = torch.remainder(roll_N + 180, 360) - 180
    seen_NA[:, _AZIMUTH] = torch.rad2deg(torch.atan2(across, z))
    seen_NA[:, _ELEVATION] = torch.rad2deg(torch.asin(down.neg().clamp(-1, 1)))
    return seen_NA
