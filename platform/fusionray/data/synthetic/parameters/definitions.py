"""The columns of the two parameter vectors: the identity of a person, and the attributes of a picture.

Without a unit, traits are in [-1, 1] (0 = average) and amounts in [0, 1] (0 = absent). Codes are whole numbers that
are stored as float.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Parameter:
    """One column: its name, the closed range of its values, and its value in a neutral picture."""

    name: str
    low: float
    high: float
    neutral: float
    meaning: str
    is_code: bool = False


def _trait(name: str, meaning: str) -> Parameter:
    return Parameter(name, -1.0, 1.0, 0.0, meaning)


def _amount(name: str, meaning: str, neutral: float = 0.0) -> Parameter:
    return Parameter(name, 0.0, 1.0, neutral, meaning)


def _code(name: str, kinds: tuple[str, ...], neutral: int = 0) -> Parameter:
    return Parameter(name, 0.0, float(len(kinds) - 1), float(neutral), " ".join(kinds), is_code=True)


HAIR_STYLES = ("bald", "buzz", "side_part", "fringe", "bob", "long", "curly", "afro", "bun", "ponytail", "swept_back")
GLASSES_KINDS = ("none", "round", "square", "half_rim", "sunglasses")
CLOTHES_STYLES = ("crew", "v_neck", "stripes", "shirt", "jacket", "hoodie")
BACKGROUND_STYLES = ("plain", "gradient", "glow", "bokeh", "curtain", "window", "horizon", "tiles")

IDENTITY_PARAMETERS: tuple[Parameter, ...] = (
    _trait("head_width", "narrow to wide skull"),
    _trait("face_length", "short to long lower face"),
    _trait("forehead_width", "narrow to broad forehead"),
    _trait("cheek_width", "narrow to broad cheekbones"),
    _trait("jaw_width", "narrow to square jaw"),
    _trait("chin_width", "pointed to broad chin"),
    _trait("cheek_fullness", "hollow to full cheeks"),
    _amount("skin_tone", "very dark to very light", 0.6),
    _trait("skin_warmth", "cool to golden undertone"),
    _amount("skin_flush", "redness of cheeks and nose", 0.3),
    _trait("eye_size", "small to large eyes"),
    _trait("eye_spacing", "close-set to wide-set eyes"),
    _trait("eye_height", "low to high in the face"),
    _trait("eye_tilt", "outer corner down to up"),
    _trait("eye_openness", "narrow to round opening"),
    _amount("eye_fold", "no lid crease to a deep one", 0.5),
    _amount("iris_tone", "black-brown, brown, amber, green, grey, blue", 0.3),
    _trait("brow_thickness", "thin to bushy brows"),
    _trait("brow_arch", "straight to arched brows"),
    _trait("brow_tilt", "outer end down to up"),
    _trait("brow_height", "near the eye to high above it"),
    _amount("brow_tone", "black to blond brows and beard", 0.25),
    _amount("brow_warmth", "ash to red brows and beard", 0.2),
    _trait("nose_length", "short to long nose"),
    _trait("nose_width", "narrow to wide wings"),
    _trait("nose_tip", "fine to bulbous tip"),
    _trait("nose_bridge", "narrow to broad bridge"),
    _trait("nose_projection", "flat to protruding nose"),
    _trait("mouth_width", "narrow to wide mouth"),
    _trait("mouth_height", "low to high mouth"),
    _trait("upper_lip", "thin to full upper lip"),
    _trait("lower_lip", "thin to full lower lip"),
    _amount("lip_colour", "skin-like to painted lips", 0.3),
    _trait("ear_size", "small to large ears"),
    _trait("ear_flare", "flat to protruding ears"),
    _amount("moustache", "density of the moustache"),
    _amount("beard", "density of the beard"),
    _amount("beard_extent", "chin only to full beard", 0.5),
    _amount("freckles", "density of freckles"),
    _amount("mole_size", "size of a mole; 0 = none"),
    _trait("mole_x", "place of the mole, image left to right"),
    _trait("mole_y", "place of the mole, up to down"),
    _amount("age", "young to old: folds, eye bags, wrinkles, grey brows", 0.2),
)

ATTRIBUTE_PARAMETERS: tuple[Parameter, ...] = (
    Parameter("yaw", -40.0, 40.0, 0.0, "degrees; positive turns the face to the image right"),
    Parameter("pitch", -20.0, 20.0, 0.0, "degrees; positive looks up"),
    Parameter("roll", -20.0, 20.0, 0.0, "degrees; positive leans clockwise in the image"),
    Parameter("shift_x", -0.07, 0.07, 0.0, "fraction of the picture's width"),
    Parameter("shift_y", -0.05, 0.05, 0.0, "fraction of the picture's height"),
    Parameter("scale", 0.8, 1.2, 1.0, "size of the head against the usual one"),
    _trait("smile", "frown to smile"),
    _amount("mouth_open", "closed to wide open"),
    _trait("brow_raise", "lowered to raised brows"),
    _amount("brow_furrow", "relaxed to drawn together"),
    _amount("eye_closure", "open to shut"),
    _amount("squint", "relaxed to squinting"),
    _trait("gaze_x", "looking to the image left to right"),
    _trait("gaze_y", "looking up to down"),
    Parameter("light_azimuth", -75.0, 75.0, -12.0, "degrees; positive lights from the image right"),
    Parameter("light_elevation", -15.0, 65.0, 28.0, "degrees; positive lights from above"),
    Parameter("light_intensity", 0.4, 1.15, 0.78, "of the directed light"),
    Parameter("ambient", 0.16, 0.5, 0.36, "light that comes from everywhere"),
    _trait("light_warmth", "blue to orange light"),
    _code("hair_style", HAIR_STYLES, 1),
    _amount("hair_length", "shorter to longer, within the style", 0.5),
    _amount("hair_volume", "flat to voluminous", 0.3),
    _trait("hair_part", "parted at the image left to right"),
    _amount("hair_tone", "black, brown, blond, platinum", 0.2),
    _amount("hair_warmth", "ash to red", 0.2),
    _amount("hair_grey", "own colour to white"),
    _code("glasses", GLASSES_KINDS),
    _amount("glasses_tone", "black to coloured frame"),
    _code("clothes_style", CLOTHES_STYLES),
    _amount("clothes_hue", "around the colour circle", 0.6),
    _amount("clothes_saturation", "grey to vivid", 0.1),
    _amount("clothes_value", "dark to light", 0.35),
    _code("background_style", BACKGROUND_STYLES),
    _amount("background_hue", "around the colour circle"),
    _amount("background_saturation", "grey to vivid"),
    _amount("background_value", "dark to light", 0.55),
    _trait("background_contrast", "second colour darker to lighter"),
    _amount("background_phase", "where its pattern lies"),
    _amount("defocus", "sharp to soft"),
    _amount("noise", "clean to grainy"),
    _amount("noise_phase", "which grain"),
)

IDENTITY_NAMES: tuple[str, ...] = tuple(parameter.name for parameter in IDENTITY_PARAMETERS)
ATTRIBUTE_NAMES: tuple[str, ...] = tuple(parameter.name for parameter in ATTRIBUTE_PARAMETERS)


@dataclass(frozen=True)
class ParameterColumns:
    """A parameter matrix read by name; each column is [N, 1, 1], which broadcasts over planes [N, H, W]."""

    by_name: dict[str, Tensor]

    @classmethod
    def from_tensor(cls, values: Tensor, names: tuple[str, ...]) -> ParameterColumns:
        """Name the columns of values [N, K].

        Raises: ValueError if K is not the number of names.
        """
        if values.ndim != 2 or values.shape[1] != len(names):
            raise ValueError(
                f"parameters: expected shape [N, {len(names)}] ({names[0]} ... {names[-1]}), got {list(values.shape)}; "
                "make them with sample_identities and sample_attributes"
            )
        columns = values.to(torch.float32).t().contiguous()[:, :, None, None].unbind(0)
        return cls(dict(zip(names, columns, strict=True)))

    def __getitem__(self, name: str) -> Tensor:
        return self.by_name[name]
