"""How well a fused face fits the skin around it: colour steps between the two, in the fused picture and in its target.

Pictures are uint8 RGB [S,S,3]. Where nobody says what is skin, the fused face is where the model changed the picture,
and skin around it is what has, in the target, nearly the colour of the skin that was replaced.

Shape suffixes: N pairs, S crop size.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.faces.blending.skin import to_lab
from fusionray.faces.face import Image
from fusionray.metrics.skin_parts import Mask, SkinParts

Floats = NDArray[np.floating]

# A pixel is fused if its colour changed by this much in CIELAB (what can just be seen is 2.3).
CHANGED = 5.0
# Where skin is not known: skin around the face lies within this share of the crop's size, and has nearly the colour of
# the replaced skin.
REACH, ALIKE = 0.15, 20.0
# Width of the bands on both sides of the edge, as a share of the crop's size.
BAND = 0.04
# Parts of the edge, around the middle of the face, and the fewest pixels of one that say something.
SECTORS, FEWEST_IN_SECTOR = 12, 4
# The least share of a crop that says something.
FEWEST_SHARE = 0.004
# Individual typology angle in degrees, from which skin is medium, and light. Source: Chardon et al. 1991, six classes
# joined in pairs.
MEDIUM_FROM, LIGHT_FROM = 10.0, 41.0
TONES = ("dark", "medium", "light")


@dataclass(frozen=True)
class SkinSteps:
    """Steps in CIEDE2000, nan where there is no skin around the face.

    `whole`: from the face to the skin around it. `edge`: across its edge, averaged along it.
    """

    whole: float
    edge: float


NO_STEPS = SkinSteps(float("nan"), float("nan"))


def measure_steps(picture: Image, skin: SkinParts) -> SkinSteps:
    """Measure the steps between the parts of a picture's skin."""
    if too_few(skin.face) or too_few(skin.around):
        return NO_STEPS
    lab = to_lab(picture)
    # The two may be a pixel apart.
    reach = max(2, round(BAND * len(picture))) + 1
    edges = (skin.face & dilate(skin.around, reach), skin.around & dilate(skin.face, reach))
    return SkinSteps(step(lab, skin.face, skin.around), step_along(lab, *edges, skin.face))


def estimate_parts(fused: Image, target: Image) -> SkinParts:
    """Take what the model changed for the face, and colours near to what it replaced for skin."""
    fused_lab, target_lab = to_lab(fused), to_lab(target)
    size = len(fused)
    face = find_face(distance(fused_lab, target_lab) > CHANGED)
    inner = erode(face, round(BAND * size))
    if too_few(inner):
        return SkinParts(inner, np.zeros_like(inner))
    skin = distance(target_lab, typical(target_lab[inner])) < ALIKE
    return SkinParts(face & skin, dilate(face, round(REACH * size)) & ~dilate(face, 1) & skin)


def measure_unchanged_share(fused: Image, target: Image, truth: Image, skin: SkinParts) -> float:
    """Return the share of the skin whose colour is nearer to the target's than to the true fusion's.

    Of the face, what has nearly the colour of its skin counts: eyes, lips and beards differ for other reasons. nan if
    the two skins are alike.
    """
    fused_lab, target_lab, truth_lab = to_lab(fused), to_lab(target), to_lab(truth)
    if too_few(skin.face):
        return float("nan")
    own, other = (typical(lab[skin.face]) for lab in (target_lab, truth_lab))
    if np.linalg.norm(own - other) < ALIKE:
        return float("nan")
    plain = (distance(target_lab, own) < ALIKE) & (distance(truth_lab, other) < ALIKE)
    counts = ((skin.face & plain) | skin.around) & (distance(truth_lab, target_lab) > 2 * CHANGED)
    if too_few(counts):
        return float("nan")
    nearer = distance(fused_lab, target_lab) < distance(fused_lab, truth_lab)
    return float(nearer[counts].mean())


def measure_tone(crop: Image) -> float:
    """Return the individual typology angle of the middle of an aligned face: 55 and more is very light, -30 dark brown.

    Source: Chardon et al. 1991: arctan((L - 50) / b).
    """
    size = len(crop)
    cheeks = to_lab(crop)[round(0.45 * size) : round(0.7 * size), round(0.3 * size) : round(0.7 * size)]
    lightness, _, yellow = typical(cheeks.reshape(-1, 3))
    return float(np.degrees(np.arctan2(lightness - 50.0, max(1e-6, yellow))))


def name_tone(angle: float) -> str:
    """Return the group of a tone."""
    return TONES[int(angle >= MEDIUM_FROM) + int(angle >= LIGHT_FROM)]


def find_face(changed: Mask) -> Mask:
    """Return the largest connected part of what changed, with its holes (eyes, nostrils) filled."""
    closed = cv2.morphologyEx(changed.astype(np.uint8), cv2.MORPH_CLOSE, disc(max(1, len(changed) // 32)))
    count, labels, sizes, _ = cv2.connectedComponentsWithStats(closed)
    if count < 2:
        return np.zeros_like(changed)
    largest = (labels == 1 + int(sizes[1:, cv2.CC_STAT_AREA].argmax())).astype(np.uint8)
    outlines, _ = cv2.findContours(largest, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    return np.asarray(cv2.drawContours(largest, outlines, -1, 1, cv2.FILLED), bool)


def too_few(mask: Mask) -> bool:
    """Tell whether a region is too small to say something."""
    return float(mask.mean()) < FEWEST_SHARE


def step(lab: Floats, first: Mask, second: Mask) -> float:
    """Return the difference of the typical colours of two regions."""
    return float(ciede2000(typical(lab[first]), typical(lab[second])))


def step_along(lab: Floats, inner: Mask, outer: Mask, face: Mask) -> float:
    """Average the step between two bands over the sectors around the middle of the face; nan if they meet in none."""
    rows, columns = np.nonzero(face)
    y, x = np.indices(inner.shape)
    angle = np.arctan2(y - rows.mean(), x - columns.mean())
    sector = np.floor((angle + np.pi) / (2 * np.pi) * SECTORS).astype(int).clip(max=SECTORS - 1)
    steps = [
        step(lab, inner & here, outer & here)
        for number in range(SECTORS)
        if min(np.count_nonzero(band & (here := sector == number)) for band in (inner, outer)) >= FEWEST_IN_SECTOR
    ]
    return float(np.mean(steps)) if steps else float("nan")


def distance(lab: Floats, other: Floats) -> Floats:
    """Return how far apart colours are in CIELAB, by pixel."""
    return np.asarray(np.linalg.norm(lab - other, axis=-1))


def typical(lab_N3: Floats) -> Floats:
    """Return the typical colour [3] of some pixels: their median, which brows and highlights do not move."""
    return np.median(lab_N3, axis=0)


def disc(radius: int) -> NDArray[np.uint8]:
    return np.asarray(cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1,) * 2), np.uint8)


def erode(mask: Mask, radius: int) -> Mask:
    return np.asarray(cv2.erode(mask.astype(np.uint8), disc(max(1, radius)), borderValue=0), bool)


def dilate(mask: Mask, radius: int) -> Mask:
    return np.asarray(cv2.dilate(mask.astype(np.uint8), disc(max(1, radius))), bool)


def ciede2000(first: Floats, second: Floats) -> Floats:
    """Return the colour difference of CIELAB colours [...,3]: 1 can hardly be seen, 10 at a glance.

    Source: Sharma, Wu, Dalal 2005, The CIEDE2000 color-difference formula, equations 2 to 22.
    """
    (l1, a1, b1), (l2, a2, b2) = (np.moveaxis(np.asarray(colour, np.float64), -1, 0) for colour in (first, second))
    mean_chroma7 = ((np.hypot(a1, b1) + np.hypot(a2, b2)) / 2) ** 7
    grey = 0.5 * (1 - np.sqrt(mean_chroma7 / (mean_chroma7 + 25.0**7)))
    a1, a2 = (1 + grey) * a1, (1 + grey) * a2
    chroma1, chroma2 = np.hypot(a1, b1), np.hypot(a2, b2)
    hue1, hue2 = np.degrees(np.arctan2(b1, a1)) % 360, np.degrees(np.arctan2(b2, a2)) % 360
    coloured = chroma1 * chroma2 > 0
    turn = (hue2 - hue1 + 180) % 360 - 180
    delta_hue = np.where(coloured, 2 * np.sqrt(chroma1 * chroma2) * np.sin(np.radians(turn) / 2), 0.0)
    far = np.abs(hue1 - hue2) > 180
    hue = np.where(coloured, ((hue1 + hue2) / 2 + 180 * far) % 360, hue1 + hue2)
    lightness, chroma = (l1 + l2) / 2, (chroma1 + chroma2) / 2
    weight = (
        1
        - 0.17 * np.cos(np.radians(hue - 30))
        + 0.24 * np.cos(np.radians(2 * hue))
        + 0.32 * np.cos(np.radians(3 * hue + 6))
        - 0.20 * np.cos(np.radians(4 * hue - 63))
    )
    scale_l = 1 + 0.015 * (lightness - 50) ** 2 / np.sqrt(20 + (lightness - 50) ** 2)
    scale_c, scale_h = 1 + 0.045 * chroma, 1 + 0.015 * chroma * weight
    rotation = (
        -np.sin(np.radians(60 * np.exp(-(((hue - 275) / 25) ** 2)))) * 2 * np.sqrt(chroma**7 / (chroma**7 + 25.0**7))
    )
    in_l, in_c, in_h = (l2 - l1) / scale_l, (chroma2 - chroma1) / scale_c, delta_hue / scale_h
    return np.asarray(np.sqrt(in_l**2 + in_c**2 + in_h**2 + rotation * in_c * in_h))
