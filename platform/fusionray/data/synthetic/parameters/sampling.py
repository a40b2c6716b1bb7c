"""Sample identities and attributes; row n depends only on (seed, n) and is the same on every device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fusionray.data.synthetic.parameters.definitions import (
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
    """Sample `count` people: [count, I] float32, columns IDENTITY_NAMES.

    A larger count does not change earlier rows.
    """
    return identities_from_uniform(hashed_uniform(seed, count, len(IDENTITY_NAMES), _IDENTITY_STREAM))


def sample_attributes(count: int, seed: int) -> Tensor:
    """Sample the attributes of `count` pictures: [count, A] float32, columns ATTRIBUTE_NAMES.

    A larger count does not change earlier rows.
    """
    return attributes_from_uniform(hashed_uniform(seed, count, len(ATTRIBUTE_NAMES), _ATTRIBUTE_STREAM))


def neutral_attributes(count: int) -> Tensor:
    """Return `count` equal rows [count, A] float32: frontal, neutral expression, soft light, plain grey background."""
    row = torch.tensor([parameter.neutral for parameter in ATTRIBUTE_PARAMETERS], dtype=torch.float32)
    return row.repeat(count, 1)


def hashed_uniform(seed: int, rows: int, columns: int, stream: int) -> Tensor:
    """Return [rows, columns] float32 in [0, 1), each value a hash of (seed, stream, row, column).

    A hash instead of a random generator: the rows of a generator depend on how many were drawn before.
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
    """Scale uniform columns to the range of each parameter; codes become whole numbers."""
    columns = {}
    for index, parameter in enumerate(parameters):
        value = uniform[:, index]
        if parameter.is_code:
            columns[parameter.name] = torch.floor(value * (parameter.high + 1.0))
        else:
            columns[parameter.name] = parameter.low + value * (parameter.high - parameter.low)
    return columns


def _rare(uniform: Tensor, share: float) -> Tensor:
    """Map `share` of the values to (0, 1], evenly, and all others to 0."""
    return ((uniform - (1.0 - share)) / share).clamp(min=0.0)


def _central(value: Tensor) -> Tensor:
    """Move values of [-1, 1] towards 0: |x|^1.5 with the sign of x.

    Only products and square roots, which round the same everywhere in a vector. `pow` does not: with it, the last bit
    of a row would depend on the number of rows.
    """
    return value * value.abs().sqrt()


def identities_from_uniform(uniform: Tensor) -> Tensor:
    """Map uniform numbers [N, I] to identities: most traits are evenly spread, marks and beards are rare."""
    columns = _spread(uniform, IDENTITY_PARAMETERS)
    columns["beard"] = _rare(columns["beard"], 0.34).sqrt()
    columns["moustache"] = torch.maximum(_rare(columns["moustache"], 0.14).sqrt(), columns["beard"] * 0.9)
    # People with a beard rarely have painted lips.
    columns["lip_colour"] = columns["lip_colour"] * (1.0 - 0.8 * columns["moustache"].clamp(0, 1))
    columns["freckles"] = _rare(columns["freckles"], 0.3)
    columns["mole_size"] = _rare(columns["mole_size"], 0.4)
    columns["age"] = columns["age"] * columns["age"].sqrt()
    # Equal steps of lightness: equal steps of reflectance would make dark tones look the same.
    columns["skin_tone"] = (columns["skin_tone"] * columns["skin_tone"].sqrt()).sqrt()
    # Light irises are rare with dark skin.
    columns["iris_tone"] = columns["iris_tone"] * (0.35 + 0.65 * columns["skin_tone"].clamp(0, 0.7) / 0.7)
    columns["brow_tone"] = columns["brow_tone"] * (0.3 + 0.7 * columns["skin_tone"])
    return torch.stack([columns[name] for name in IDENTITY_NAMES], dim=1)


def attributes_from_uniform(uniform: Tensor) -> Tensor:
    """Map uniform numbers [N, A] to attributes: frontal and neutral is more frequent than extreme."""
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
    # Light from the front is more frequent than from the side, so that most pictures show skin and shape.
    columns["light_azimuth"] = 75.0 * _central(columns["light_azimuth"] / 75.0)
    columns["light_intensity"] = 0.6 + 0.6 * (columns["light_intensity"] - 0.4)
    columns["ambient"] = 0.26 + 0.7 * (columns["ambient"] - 0.16)
    columns["light_warmth"] = 0.5 * _central(columns["light_warmth"])
    columns["glasses"] = torch.ceil(4.0 * _rare(uniform[:, ATTRIBUTE_NAMES.index("glasses")], 0.18)).clamp(max=4.0)
    # Some bald heads become buzz cuts: a bald head is less frequent than any other style.
    is_buzzed = (columns["hair_style"] == HAIR_STYLES.index("bald")) & (columns["hair_length"] > math.sqrt(0.5))
    columns["hair_style"] = columns["hair_style"] + is_buzzed.to(torch.float32)
    columns["defocus"] = _rare(columns["defocus"], 0.4)
    columns["noise"] = _rare(columns["noise"], 0.6)
    return torch.stack([columns[name] for name in ATTRIBUTE_NAMES], dim=1)
