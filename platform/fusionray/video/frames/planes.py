"""Read a region of a frame as sRGB, and blend a changed region back into the planes.

A frame is never converted as a whole: only the samples of the region, and a rim of chroma, are touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from av import VideoFrame
from numpy.typing import NDArray

from fusionray.faces.face import FloatMap, Image
from fusionray.video.frames.colour import ColourMap, Floats, map_of
from fusionray.video.frames.pixel_layout import Samples, view_planes
from fusionray.video.frames.region import Box, Region, find_region

# A pixel that changes by so much (of 255) keeps nothing of what sRGB cannot show of it.
_CHANGE_OF_CONTENT = 64.0


def read_region(frame: VideoFrame, box: Box) -> Image:
    """Read a box of a frame as uint8 sRGB [height, width, 3], as stored: the display matrix is not applied.

    HDR pictures are mapped around a reference white of 203 nits (`transfer`).

    Raises:
        ValueError: the box is empty or leaves the frame.
        VideoRejected: with the reason "pixel_format" or "colour_matrix".
    """
    colours = map_of(frame)
    region = find_region(box, frame, colours.layout)
    codes = _read_codes(view_planes(frame, colours.layout), region, colours)
    return np.ascontiguousarray(region.cut_box(colours.codes_to_rgb(codes)))


def blend_region(frame: VideoFrame, box: Box, rgb: Image | Floats, mask: FloatMap) -> None:
    """Blend a changed box into a frame, in place: `rgb` [height, width, 3] by the weights `mask` [height, width].

    `rgb` is uint8, or float32 of 0 to 1; weights are 0 to 1. The blend happens in the codes of the planes: a code whose
    pixels all have weight 0 keeps its bits, and alpha does. What sRGB cannot show of the old picture (fine steps, wide
    colours, the highlights of HDR) is kept in full where `rgb` is what `read_region` gives, and the less the more it
    differs, up to a quarter of the scale: an unchanged region keeps every bit, and a new face has no trace of the old.

    Raises:
        ValueError: the box is empty or leaves the frame, or the shapes differ from it.
        VideoRejected: with the reason "pixel_format" or "colour_matrix".
    """
    colours = map_of(frame)
    find_region(box, frame, colours.layout)
    if rgb.shape != (box[3], box[2], 3) or mask.shape != (box[3], box[2]):
        raise ValueError(f"rgb {rgb.shape} and mask {mask.shape} differ from the box of {box[2]} x {box[3]} pixels")
    shown = _find_shown(mask)
    if shown is None:
        return
    rows, columns = shown
    inner = (box[0] + columns.start, box[1] + rows.start, columns.stop - columns.start, rows.stop - rows.start)
    region = find_region(inner, frame, colours.layout)
    # Frames that the decoder still needs for later ones are copied first.
    frame.make_writable()
    planes = view_planes(frame, colours.layout)
    weight = region.surround(np.clip(mask[rows, columns], 0, 1), 0)
    change = _map_change(planes, rgb[rows, columns], region, colours)
    _write_codes(planes, region, colours.layout.bits, change, weight)


def _find_shown(mask: FloatMap) -> tuple[slice, slice] | None:
    """Find the rows and columns that have a weight; None if there are none."""
    rows, columns = np.flatnonzero((mask > 0).any(1)), np.flatnonzero((mask > 0).any(0))
    if not len(rows):
        return None
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


@dataclass(frozen=True, eq=False, slots=True)
class _Change:
    """Codes of a region by plane [h, w]: the new ones, and those that sRGB shows of the old picture; `kept` [h, w] is
    the share of the rest of the old picture that stays."""

    new: Sequence[Floats]
    known: Sequence[Floats]
    kept: Floats


def _map_change(planes: list[Samples], rgb: Image | Floats, region: Region, colours: ColourMap) -> _Change:
    before = colours.codes_to_rgb(_read_codes(planes, region, colours))
    whole_scale = 1 if rgb.dtype == np.uint8 else 255
    # Of the same kind as the new picture, which lies within it.
    after: NDArray[Any] = before.copy() if rgb.dtype == np.uint8 else before * np.float32(1 / 255)
    box, rgb = region.cut_box(after), np.ascontiguousarray(rgb, after.dtype)
    red, green, blue = cv2.split(cv2.absdiff(box, rgb))
    change = cv2.max(cv2.max(red, green), blue) * np.float32(whole_scale / _CHANGE_OF_CONTENT)
    box[...] = rgb
    kept = region.surround(np.maximum(1 - change, 0), 1)
    return _Change(cv2.split(colours.rgb_to_codes(after)), cv2.split(colours.rgb_to_codes(before)), kept)


def _read_codes(planes: list[Samples], region: Region, colours: ColourMap) -> Floats:
    """Read the codes of a region, float32 [h, w, 3], chroma interpolated."""
    luma = region.view_luma(planes[0]).astype(np.float32)
    if colours.layout.is_grey:
        neutral = np.full_like(luma, 1 << (colours.layout.bits - 1))
        return np.dstack([luma, neutral, neutral])
    chroma = [region.enlarge_chroma(region.view_chroma(plane)) for plane in planes[1:]]
    return np.asarray(cv2.merge([luma, *chroma]))


def _write_codes(planes: list[Samples], region: Region, bits: int, change: _Change, weight: Floats) -> None:
    top = (1 << bits) - 1
    _blend_plane(region.view_luma(planes[0]), change.new[0], change.known[0], change.kept, weight, top=top)
    kept, weight = region.average_to_chroma(change.kept), region.average_to_chroma(weight)
    for index, plane in enumerate(planes[1:], 1):
        new, known = (region.reduce_to_chroma(codes[index]) for codes in (change.new, change.known))
        _blend_plane(region.view_chroma(plane), new, known, kept, weight, top=top)


def _blend_plane(plane: Samples, new: Floats, known: Floats, kept: Floats, weight: Floats, *, top: int) -> None:
    """Write old + weight * (new - old + kept * (old - known)): exactly old for a weight of 0, or if nothing changed."""
    old = plane.astype(np.float32)
    change = cv2.subtract(old, known)
    change *= kept
    change += cv2.subtract(new, old)
    change *= weight
    change += old
    # The sum with 0 rounds, and saturates at the ends of the type.
    codes = cv2.add(change, 0, dtype=cv2.CV_8U if plane.dtype == np.uint8 else cv2.CV_16U)
    plane[...] = codes if plane.dtype == np.uint8 else np.minimum(codes, top)
