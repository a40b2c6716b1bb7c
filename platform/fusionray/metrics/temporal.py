"""How steady a fused clip is, measured against the clip that it was made from.

Clips are RGB in [-1,1]; figures are of RGB in [0,1].

Shape suffixes: T frames, H rows, W columns.
"""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fusionray.nets.pixels import to_uint8

Flow = NDArray[np.float32]
"""[H, W, 2]: how far, in pixels to the right and down, the place that is seen here lies away in the other frame."""


class WarpError(NamedTuple):
    """Mean squared difference between frames and their predecessors moved onto them; nan if nothing can be followed.

    The target's own is what remains of a clip that no model touched: flow is never exact, light changes.
    """

    fused: float
    target: float


def flicker(target_T3HW: Tensor, fused_T3HW: Tensor) -> float:
    """Measure what the fusion adds to the change from frame to frame: the mean of |D_t - D_(t-1)|, D = fused - target.

    0 for a change that stays the same; needs no flow, but counts a change that moves with the face as unsteady.

    Raises: ValueError with fewer than two frames, or clips of different shape.
    """
    check_clips(target_T3HW, fused_T3HW)
    added_T3HW = (fused_T3HW - target_T3HW) / 2
    return float(added_T3HW.diff(dim=0).abs().mean())


def warp_error(target_T3HW: Tensor, fused_T3HW: Tensor) -> WarpError:
    """Measure how much a frame differs from the one before it, once the motion of the target is taken out.

    The flow is that of the target's frames, for both clips. Only pixels that can be followed count: those where the
    flow there and the flow back agree. Each step from frame to frame weighs the same.

    Raises: ValueError with fewer than two frames, or clips of different shape.

    Source: Lai et al. 2018, "Learning blind video temporal consistency", evaluation metrics: flow warping error.
    """
    check_clips(target_T3HW, fused_T3HW)
    clips = [((clip + 1) / 2).permute(0, 2, 3, 1).float().cpu().numpy() for clip in (fused_T3HW, target_T3HW)]
    seen = to_uint8(target_T3HW).permute(0, 2, 3, 1).cpu().numpy()
    grey = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in seen]
    search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    errors = []
    for now in range(1, len(grey)):
        back = search.calc(grey[now], grey[now - 1], None)
        there = search.calc(grey[now - 1], grey[now], None)
        followed_HW = find_followed(back, there)
        if followed_HW.any():
            moved = (follow(clip[now - 1], back) for clip in clips)
            squared = (np.square(before - clip[now]) for before, clip in zip(moved, clips, strict=True))
            errors.append([difference[followed_HW].mean() for difference in squared])
    if not errors:
        return WarpError(float("nan"), float("nan"))
    return WarpError(*np.mean(errors, axis=0).tolist())


def find_followed(back: Flow, there: Flow) -> NDArray[np.bool_]:
    """Find the pixels that were seen in the frame before: [H, W].

    |there + back|^2 < 0.01 (|there|^2 + |back|^2) + 0.5, `there` taken where `back` leads.

    Source: Sundaram et al. 2010, "Dense point trajectories by GPU-accelerated large displacement optical flow", eq. 5.
    """
    height, width = back.shape[:2]
    place = lead(back)
    inside_HW = ((place >= 0) & (place <= (width - 1, height - 1))).all(axis=2)
    there = follow(there, back)
    length_HW = np.square(there).sum(axis=2) + np.square(back).sum(axis=2)
    agrees_HW: NDArray[np.bool_] = np.square(there + back).sum(axis=2) < 0.01 * length_HW + 0.5
    return agrees_HW & inside_HW


def follow(values: NDArray[np.float32], flow: Flow) -> NDArray[np.float32]:
    """Take values [H, W, C] from where the flow leads, bilinearly."""
    taken: NDArray[np.float32] = cv2.remap(values, lead(flow), None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return taken


def lead(flow: Flow) -> NDArray[np.float32]:
    """Give the places [H, W, 2] (x, y) that the flow leads to from each pixel."""
    y_HW, x_HW = np.mgrid[: flow.shape[0], : flow.shape[1]].astype(np.float32)
    return np.stack([x_HW, y_HW], axis=2) + flow


def check_clips(target_T3HW: Tensor, fused_T3HW: Tensor) -> None:
    """Refuse clips that cannot be compared frame by frame."""
    if target_T3HW.shape != fused_T3HW.shape:
        raise ValueError(f"target clip {list(target_T3HW.shape)} and fused clip {list(fused_T3HW.shape)} differ")
    if len(target_T3HW) < 2:
        raise ValueError("a clip of one frame has no change from frame to frame: give at least two")
