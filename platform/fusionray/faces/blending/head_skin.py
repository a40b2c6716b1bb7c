"""Carry the skin of a fused face over the rest of the head: forehead, ears and neck get its colour, too.

A face parser says roughly where skin is; the picture itself says where it ends.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.faces.align import compose, enlarge_map, move_origin, region_under, warp_crop
from fusionray.faces.blending.skin import LEAST_CHANGE, SkinShift, from_lab, to_lab
from fusionray.faces.face import FloatMap, Image, Matrix

# Side at which the edge of the skin is looked for, in multiples of the parser's.
FINENESS = 4
# Of the guided filter: radius as a share of the side, and how small a step of lightness (0 to 1) counts as an edge.
RADIUS_SHARE, LEAST_STEP = 0.016, 0.03
# A parser is never quite sure, and what colours say is trusted up to this logarithm of odds.
LIKELY, COLOUR_TRUST = (0.005, 0.995), 3.0
# A share below this counts as none, so that what is no skin keeps its bytes; one above 1 - UNLIKELY as all.
UNLIKELY = 0.05
# Bins of colours in CIELAB, which reach from L, a, b; first and last stay empty, so that neighbours can be added in
# a circle. Colours rarer than a share of RARE say nothing.
COLOUR_BINS, COLOUR_STEP, LOWEST_COLOUR = 18, 8.0, np.array([-22.0, -72.0, -72.0], np.float32)
RARE = 1e-4
# Rows that change colour at once: three planes of float32 of a picture of 12 megapixels would be 144 MB.
ROWS = 256


def carry_skin(
    image: Image, shift: SkinShift | None, skin_PP: FloatMap, to_head: Matrix, strength: float = 1.0
) -> None:
    """Give the skin of a head the colours of its fused face, in place, before that is pasted.

    `shift`: from the target's skin to that of the fused face; None, or a small one: nothing is done. `skin_PP`: the
    share of skin in a crop of the head, which `to_head` maps the picture to. Shading, freckles and beard stay: all skin
    changes alike, by the share `strength`.
    """
    if shift is None or shift.distance < LEAST_CHANGE or not strength:
        return
    side = FINENESS * len(skin_PP)
    to_fine = compose(enlarge_map(FINENESS), to_head)
    weight = find_skin(warp_crop(image, to_fine, side), skin_PP) * np.float32(strength)
    left, top, right, bottom = region_under(to_fine, side, side, image)
    for start in range(top, bottom, ROWS):
        stop = min(bottom, start + ROWS)
        recolour(image[start:stop, left:right], weight, move_origin(to_fine, left, start), shift)


def find_skin(head_SS3: Image, skin_PP: FloatMap) -> FloatMap:
    """Return the share of skin in a crop of a head [S,S], from a coarse one, with the edges of the picture.

    A parser that learned from rendered people knows where skin is likely, and the picture what colour it has: both are
    multiplied as probabilities. The share falls to 0 at the edges of the crop.
    """
    lab = to_lab(head_SS3)
    side = len(head_SS3)
    coarse = np.clip(cv2.resize(skin_PP, (side, side), interpolation=cv2.INTER_LINEAR), *LIKELY)
    odds = np.log(coarse / (1 - coarse)) + compare_colours(lab, coarse)
    guide = np.asarray(lab[..., 0] / 100, np.float32)
    fine = filter_guided(np.asarray(1 / (1 + np.exp(-odds)), np.float32), guide, max(1, round(RADIUS_SHARE * side)))
    return np.asarray(np.clip((fine - UNLIKELY) / (1 - 2 * UNLIKELY), 0, 1) * fade_out(side), np.float32)


def compare_colours(lab_SS3: NDArray[np.float32], share_SS: FloatMap) -> FloatMap:
    """Return the logarithm of how much more frequent each pixel's colour is in skin than elsewhere, [S,S], bounded."""
    index = np.clip((lab_SS3 - LOWEST_COLOUR) / COLOUR_STEP, 1, COLOUR_BINS - 2).astype(np.int64)
    flat = np.ravel_multi_index(tuple(np.moveaxis(index, -1, 0)), (COLOUR_BINS,) * 3).ravel()
    frequencies = []
    for share in (share_SS, 1 - share_SS):
        counts = np.bincount(flat, share.ravel(), COLOUR_BINS**3).reshape((COLOUR_BINS,) * 3)
        for axis in range(3):
            counts = counts + np.roll(counts, 1, axis) + np.roll(counts, -1, axis)
        frequencies.append((counts / max(1e-6, counts.sum())).ravel()[flat] + RARE)
    ratio = np.log(frequencies[0] / frequencies[1]).reshape(share_SS.shape)
    return np.asarray(np.clip(ratio, -COLOUR_TRUST, COLOUR_TRUST), np.float32)


def filter_guided(values: FloatMap, guide: NDArray[np.float32], radius: int) -> FloatMap:
    """Smooth values [H,W] but at the edges of a guide [H,W] of 0 to 1.

    Source: He et al. 2010, Guided image filtering, with a grey guide.
    """
    window = (2 * radius + 1, 2 * radius + 1)
    mean_guide, mean_values = cv2.blur(guide, window), cv2.blur(values, window)
    variance = cv2.blur(guide * guide, window) - mean_guide * mean_guide
    slope = (cv2.blur(guide * values, window) - mean_guide * mean_values) / (variance + LEAST_STEP**2)
    offset = mean_values - slope * mean_guide
    filtered: FloatMap = cv2.blur(slope, window) * guide + cv2.blur(offset, window)
    return filtered


def fade_out(side: int) -> FloatMap:
    """Return 1 in the middle of a square, and 0 at its edges, over a sixteenth of the side."""
    edge = np.minimum(np.arange(side), np.arange(side)[::-1]) / (side / 16)
    ramp = np.clip(edge, 0, 1).astype(np.float32)
    return np.asarray(np.minimum.outer(ramp, ramp), np.float32)


def recolour(rows: Image, weight: FloatMap, to_weight: Matrix, shift: SkinShift) -> None:
    """Change the colours of rows of a picture by a weight that `to_weight` maps them to, in place."""
    height, width = rows.shape[:2]
    here = cv2.warpAffine(
        weight, to_weight, (width, height), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, borderValue=0
    )[..., None]
    if not here.any():
        return
    lab = to_lab(rows)
    changed = from_lab(np.asarray(lab + here * (shift.apply(lab) - lab), np.float32))
    # The way to CIELAB and back rounds: what is no skin keeps its bytes.
    np.copyto(rows, changed, where=here > 0)
