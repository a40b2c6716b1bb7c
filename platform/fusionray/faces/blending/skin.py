"""The colour of a fused face: its own, or that of the target's skin around it.

A face that was fused in the middle of a head keeps the head's forehead, ears and neck: a dark face on a light head
shows a seam, and so does a coloured face in a grey picture. Either the face gets the colour of the head (`match_skin`),
or the head that of the face (`head_skin`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.faces.face import FloatMap, Image

Skin = Literal["source", "target"]
"""Whose skin a fused face has: `source`, as the model made it; `target`, that of the head around it."""

# Share of the darkest and of the lightest pixels, which say nothing of the skin: brows, eyes, teeth, highlights.
IGNORED_SHARE = 0.2
# Contrast may change by this factor at most: a flat face would be stretched into noise.
LARGEST_FACTOR = 1.5
# A pixel whose colour changed by less, in CIELAB, was not fused.
LEAST_CHANGE = 5.0
# Below so many fused pixels nothing is known of the skin, or it is alike.
FEWEST_PIXELS = 64
# Who differs by this share of what the skins are apart is skin that the model changed.
CHANGED_SHARE = 0.5
# Largest difference of the channels of a grey picture, in levels: JPEG makes some.
GREY_LEVELS = 6
# Of its rows and columns, each so many is looked at.
GREY_STEP = 2


@dataclass(frozen=True, eq=False)
class SkinShift:
    """A change of colours from one skin's to another's: their means [3] in CIELAB, and a factor [3] of contrast.

    Source: Reinhard et al. 2001, Color transfer between images; here of the skin alone.
    """

    before: NDArray[np.float32]
    after: NDArray[np.float32]
    factor: NDArray[np.float32]

    @property
    def distance(self) -> float:
        """Return how far the two skins are apart, in CIELAB."""
        return float(np.linalg.norm(self.after - self.before))

    def apply(self, lab: NDArray[np.float32]) -> NDArray[np.float32]:
        """Change colours [..., 3]."""
        return np.asarray((lab - self.before) * self.factor + self.after, np.float32)


def find_shift(
    fused_lab: NDArray[np.float32], target_lab: NDArray[np.float32], mask_SS: FloatMap, *, to_target: bool
) -> SkinShift | None:
    """Return the change from the skin of a fused crop to that of its target, or the other way round.

    Both are measured where the fusion changed the crop; None if that is hardly anywhere.
    """
    skin_SS = (mask_SS > 0.5) & (measure_change(fused_lab, target_lab) > LEAST_CHANGE)
    if np.count_nonzero(skin_SS) < FEWEST_PIXELS:
        return None
    before, after = (fused_lab, target_lab) if to_target else (target_lab, fused_lab)
    (before_mean, before_spread), (after_mean, after_spread) = (measure_skin(lab[skin_SS]) for lab in (before, after))
    factor = np.clip(after_spread / np.maximum(before_spread, 1e-3), 1 / LARGEST_FACTOR, LARGEST_FACTOR)
    return SkinShift(before_mean, after_mean, np.asarray(factor, np.float32))


def match_skin(fused_SS3: Image, target_SS3: Image, mask_SS: FloatMap, skin: Skin) -> Image:
    """Return a fused crop with the colours that `skin` asks for; a face in a grey target is grey in any case.

    `mask_SS`: 0 to 1, where the crop will be shown. All skin is shifted by the same colour, so that the shading,
    make-up and beard of the fused face stay.
    """
    if is_grey(target_SS3):
        fused_SS3 = cv2.cvtColor(cv2.cvtColor(fused_SS3, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    if skin == "source":
        return fused_SS3
    fused_lab, target_lab = to_lab(fused_SS3), to_lab(target_SS3)
    shift = find_shift(fused_lab, target_lab, mask_SS, to_target=True)
    if shift is None:
        return fused_SS3
    # Hair, glasses, hands, eyes and what lies behind are those of the target already: they keep their colours.
    apart = max(LEAST_CHANGE, CHANGED_SHARE * shift.distance)
    weight_SS = np.minimum(measure_change(fused_lab, target_lab) / apart, 1.0)
    weight_SS = cv2.GaussianBlur(weight_SS, (0, 0), len(mask_SS) / 64)
    return from_lab(np.asarray(fused_lab + weight_SS[..., None] * (shift.apply(fused_lab) - fused_lab), np.float32))


def measure_change(fused_lab: NDArray[np.float32], target_lab: NDArray[np.float32]) -> FloatMap:
    """Return how far apart the colours of two crops are, [S,S]."""
    changed: FloatMap = cv2.sqrt(((fused_lab - target_lab) ** 2).sum(axis=-1))
    return changed


def is_grey(picture_HW3: Image) -> bool:
    """Tell whether a picture has no colours; a few pixels may have some, such as those of a stamp."""
    some = picture_HW3[::GREY_STEP, ::GREY_STEP].astype(np.int16)
    spread = some.max(axis=-1) - some.min(axis=-1)
    return bool(np.count_nonzero(spread > GREY_LEVELS) <= 0.02 * spread.size)


def measure_skin(lab_N3: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return mean and standard deviation [3] of the pixels of a face that are neither very dark nor very light."""
    low, high = np.quantile(lab_N3[:, 0], (IGNORED_SHARE, 1 - IGNORED_SHARE))
    skin_N3 = lab_N3[(lab_N3[:, 0] >= low) & (lab_N3[:, 0] <= high)]
    return skin_N3.mean(axis=0), skin_N3.std(axis=0)


def to_lab(picture: Image) -> NDArray[np.float32]:
    """Convert uint8 RGB to CIELAB, float32: L 0..100, a and b around 0."""
    lab: NDArray[np.float32] = cv2.cvtColor(picture.astype(np.float32) / 255.0, cv2.COLOR_RGB2LAB)
    return lab


def from_lab(lab: NDArray[np.float32]) -> Image:
    """Convert CIELAB to uint8 RGB; colours outside of sRGB are clipped."""
    rgb = cv2.cvtColor(lab, cv2.COLOR_LAB2RGB)
    return np.asarray(np.rint(np.clip(rgb, 0.0, 1.0) * 255.0), np.uint8)
