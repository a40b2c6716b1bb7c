"""Draw people and pictures: row n depends on nothing but (seed, n), on every device alike."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fusionray.data.synthetic.parameters import (
    ATTRIBUTE_NAMES,
    ATTRIBUTE_PARAMETERS,
    HAIR_STYLES,
    IDENTITY_NAMES,
    IDENTITY_PARAMETERS,
    Parameter,
)

_IDENTITY_STREAM = 1
_ATTRIBUTE_STREAM = 2
_BITS = 24


def sample_identities(count: int, seed: int) -> Tensor:
    """Draw `count` people.

    Returns [count, I] float32, columns IDENTITY_NAMES. Growing the count never changes earlier people.
    """
    return shape_identities(hashed_uniform(seed, count, len(IDENTITY_NAMES), _IDENTITY_STREAM))


def sample_attributes(count: int, seed: int) -> Tensor:
    """Draw `count` ways to show a person: pose, expression, light, hair, glasses, clothes, background.

    Returns [count, A] float32, columns ATTRIBUTE_NAMES. Growing the count never changes earlier rows.
    """
    return shape_attributes(hashed_uniform(seed, count, len(ATTRIBUTE_NAMES), _ATTRIBUTE_STREAM))


def neutral_attributes(count: int) -> Tensor:
    """Return `count` equal rows [count, A]: frontal, calm, soft light, buzz cut, plain grey background."""
    row = torch.tensor([parameter.neutral for parameter in ATTRIBUTE_PARAMETERS], dtype=torch.float32)
    return row.repeat(count, 1)


def hashed_uniform(seed: int, rows: int, columns: int, stream: int) -> Tensor:
    """Return [rows, columns] float32 in [0, 1), each value a hash of (seed, stream, row, column).

    A hash, not a generator: a generator's later rows depend on how many were asked for before.
    Source: the finaliser of MurmurHash3 (A. Appleby), 64 bits.
    """
    row = torch.arange(rows, dtype=torch.int64)[:, None]
    column = torch.arange(columns, dtype=torch.int64)[None, :]
    start = _signed((seed * 0x9E3779B97F4A7C15 + stream * 0xD1B54A32D192ED03 + 0x8CB92BA72F3D8DD7) % 2**64)
    state = _mix(_mix(row * _signed(0xBF58476D1CE4E5B9) + start) + column * _signed(0x94D049BB133111EB))
    uniform: Tensor = ((state >> (64 - _BITS)) & (2**_BITS - 1)).to(torch.float32) / 2**_BITS
    return uniform


def _mix(state: Tensor) -> Tensor:
    for multiplier in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        state = (state ^ ((state >> 33) & (2**31 - 1))) * _signed(multiplier)
    return state ^ ((state >> 33) & (2**31 - 1))


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _spread(uniform: Tensor, parameters: tuple[Parameter, ...]) -> dict[str, Tensor]:
    """Stretch uniform columns over each parameter's range; codes become whole numbers."""
    columns = {}
    for index, parameter in enumerate(parameters):
        value = uniform[:, index]
        if parameter.is_code:
            columns[parameter.name] = torch.floor(value * (parameter.high + 1.0))
        else:
            columns[parameter.name] = parameter.low + value * (parameter.high - parameter.low)
    return columns


def _rare(uniform: Tensor, share: float) -> Tensor:
    """Return 0 for all but `share` of the values, and those spread over (0, 1]."""
    return ((uniform - (1.0 - share)) / share).clamp(min=0.0)


def _central(value: Tensor) -> Tensor:
    """Draw values of [-1, 1] towards 0 without leaving the range: |x|^1.5.

    Products and roots alone: they are rounded alike in every part of a vector, `pow` is not, and the last bit of a
    row would depend on how many rows there are.
    """
    return value * value.abs().sqrt()


def shape_identities(uniform: Tensor) -> Tensor:
    """Turn uniform numbers [N, I] into people: most traits evenly spread, marks and beards on some."""
    columns = _spread(uniform, IDENTITY_PARAMETERS)
    columns["beard"] = _rare(columns["beard"], 0.34).sqrt()
    columns["moustache"] = torch.maximum(_rare(columns["moustache"], 0.14).sqrt(), columns["beard"] * 0.9)
    # Paint and beard do not go together; the lips of bearded people keep their own colour.
    columns["lip_colour"] = columns["lip_colour"] * (1.0 - 0.8 * columns["moustache"].clamp(0, 1))
    columns["freckles"] = _rare(columns["freckles"], 0.3)
    columns["mole_size"] = _rare(columns["mole_size"], 0.4)
    columns["age"] = columns["age"] * columns["age"].sqrt()
    # Equal steps of light, not of reflectance: the dark end would look alike.
    columns["skin_tone"] = (columns["skin_tone"] * columns["skin_tone"].sqrt()).sqrt()
    # Light irises are seldom among dark skins.
    columns["iris_tone"] = columns["iris_tone"] * (0.35 + 0.65 * columns["skin_tone"].clamp(0, 0.7) / 0.7)
    columns["brow_tone"] = columns["brow_tone"] * (0.3 + 0.7 * columns["skin_tone"])
    return torch.stack([columns[name] for name in IDENTITY_NAMES], dim=1)


def shape_attributes(uniform: Tensor) -> Tensor:
    """Turn uniform numbers [N, A] into picture conditions: frontal and calm more often than extreme."""
    columns = _spread(uniform, ATTRIBUTE_PARAMETERS)
    for name in ("yaw", "pitch", "roll"):
        limit = next(parameter.high for parameter in ATTRIBUTE_PARAMETERS if parameter.name == name)
        columns[name] = limit * _central(columns[name] / limit)
    columns["mouth_open"] = _rare(columns["mouth_open"], 0.5)
    columns["brow_furrow"] = _rare(columns["brow_furrow"], 0.4)
    columns["eye_closure"] = _rare(columns["eye_closure"], 0.25)
    columns["squint"] = _rare(columns["squint"], 0.35)
    columns["hair_grey"] = _rare(columns["hair_grey"], 0.2)
    columns["hair_tone"] = columns["hair_tone"] * columns["hair_tone"].sqrt()
    # Portrait light more often than a lamp from the side: skin and shape are to be read in most pictures.
    columns["light_azimuth"] = 75.0 * _central(columns["light_azimuth"] / 75.0)
    columns["light_intensity"] = 0.6 + 0.6 * (columns["light_intensity"] - 0.4)
    columns["ambient"] = 0.26 + 0.7 * (columns["ambient"] - 0.16)
    columns["light_warmth"] = 0.5 * _central(columns["light_warmth"])
    columns["glasses"] = torch.ceil(4.0 * _rare(uniform[:, ATTRIBUTE_NAMES.index("glasses")], 0.18)).clamp(max=4.0)
    # A quarter of the bald become buzz cuts, so that no style stands out as often as skin alone.
    is_buzzed = (columns["hair_style"] == HAIR_STYLES.index("bald")) & (columns["hair_length"] > math.sqrt(0.5))
    columns["hair_style"] = columns["hair_style"] + is_buzzed.to(torch.float32)
    columns["defocus"] = _rare(columns["defocus"], 0.4)
    columns["noise"] = _rare(columns["noise"], 0.6)
    return torch.stack([columns[name] for name in ATTRIBUTE_NAMES], dim=1)
