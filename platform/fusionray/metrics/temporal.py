"""Temporal stability of a fused clip: flicker and flow warping error, relative to the target clip.

Clips are RGB in [-1,1]; the results are on RGB in [0,1].

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
"""Optical flow [H,W,2]: displacement in pixels (right, down) from each pixel to its position in the other frame."""


class WarpError(NamedTuple):
    """Mean squared difference between frames and their warped predecessors; nan if no pixel can be tracked.

    `target` is the error of the unchanged clip: flow is never exact, and light changes.
    """

    fused: float
    target: float


def flicker(target_T3HW: Tensor, fused_T3HW: Tensor) -> float:
    """Return the change from frame to frame that the fusion adds: the mean of |D_t - D_(t-1)|, D = fused - target.

    0 for a constant difference. It needs no flow, but counts a difference that moves with the face as flicker.

    Raises: ValueError with fewer than two frames, or clips of different shape.
    """
    check_clips(target_T3HW, fused_T3HW)
    added_T3HW = (fused_T3HW - target_T3HW) / 2
    return float(added_T3HW.diff(dim=0).abs().mean())


def warp_error(target_T3HW: Tensor, fused_T3HW: Tensor) -> WarpError:
    """Return the difference between each frame and the previous one, after compensating the motion of the target.

    The flow of the target's frames is used for both clips. Only trackable pixels count: those whose forward and
    backward flow agree. Each step from frame to frame has equal weight.

    Raises: ValueError with fewer than two frames, or clips of different shape.

    Source: Lai et al. 2018, "Learning blind video temporal consistency", evaluation metrics: flow warping error.
    """
    check_clips(target_T3HW, fused_T3HW)
    clips = [((clip + 1) / 2).permute(0, 2, 3, 1).float().cpu().numpy() for clip in (fused_T3HW, target_T3HW)]
    frames = to_uint8(target_T3HW).permute(0, 2, 3, 1).cpu().numpy()
    grey = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in frames]
    estimator = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    errors = []
    for now in range(1, len(grey)):
        backward = estimator.calc(grey[now], grey[now - 1], None)
        forward = estimator.calc(grey[now - 1], grey[now], None)
        trackable_HW = find_trackable(backward, forward)
        if trackable_HW.any():
            warped = (warp_by_flow(clip[now - 1], backward) for clip in clips)
            squared = (np.square(previous - clip[now]) for previous, clip in zip(warped, clips, strict=True))
            errors.append([difference[trackable_HW].mean() for difference in squared])
    if not errors:
        return WarpError(float("nan"), float("nan"))
    return WarpError(*np.mean(errors, axis=0).tolist())


def identity_jump(identity_TE: NDArray[np.float32]) -> float:
    """Return the mean of one minus the cosine of the identities of consecutive frames, unit vectors [T,E]: 0 if the
    person stays the same.

    Raises: ValueError with fewer than two frames.

    Known as VIDD (video identity distance) where it is averaged over the frames of a swapped video.
    """
    if len(identity_TE) < 2:
        raise ValueError("a clip needs at least two frames")
    return float((1 - (identity_TE[1:] * identity_TE[:-1]).sum(axis=1)).mean())


def find_trackable(backward: Flow, forward: Flow) -> NDArray[np.bool_]:
    """Return which pixels are visible in the previous frame too: bool [H,W].

    |f + b|^2 < 0.01 (|f|^2 + |b|^2) + 0.5, b the backward flow of a pixel, f the forward flow where b leads.

    Source: Sundaram et al. 2010, "Dense point trajectories by GPU-accelerated large displacement optical flow", eq. 5.
    """
    height, width = backward.shape[:2]
    position = flow_positions(backward)
    inside_HW = ((position >= 0) & (position <= (width - 1, height - 1))).all(axis=2)
    forward = warp_by_flow(forward, backward)
    length_HW = np.square(forward).sum(axis=2) + np.square(backward).sum(axis=2)
    agrees_HW: NDArray[np.bool_] = np.square(forward + backward).sum(axis=2) < 0.01 * length_HW + 0.5
    return agrees_HW & inside_HW


def warp_by_flow(values: NDArray[np.float32], flow: Flow) -> NDArray[np.float32]:
    """Sample values [H,W,C] at the positions to which the flow leads, bilinearly."""
    sampled: NDArray[np.float32] = cv2.remap(
        values, flow_positions(flow), None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
    )
    return sampled


def flow_positions(flow: Flow) -> NDArray[np.float32]:
    """Return the position [H,W,2] (x, y) to which the flow leads from each pixel."""
    y_HW, x_HW = np.mgrid[: flow.shape[0], : flow.shape[1]].astype(np.float32)
    return np.stack([x_HW, y_HW], axis=2) + flow


def check_clips(target_T3HW: Tensor, fused_T3HW: Tensor) -> None:
    """Check that two clips can be compared frame by frame.

    Raises: ValueError.
    """
    if target_T3HW.shape != fused_T3HW.shape:
        raise ValueError(f"target clip {list(target_T3HW.shape)} and fused clip {list(fused_T3HW.shape)} differ")
    if len(target_T3HW) < 2:
        raise ValueError("a clip needs at least two frames")
