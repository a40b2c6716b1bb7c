"""What is known of each frame, from what was measured of some: interpolated, and smoothed within shots.

A painting whose statistics are those of each single frame flickers: its colours and contrasts jump where an object
enters the picture. Shape suffixes: T frames, K measured frames, M length of what is measured of a frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fusionray.runtime.pixels import FloatArray
from fusionray.video.cuts import is_cut
from fusionray.video.style_transfer.measuring import SegmentStatistics

# Frames on each side of one that smooth it: a second in all, of most videos.
REACH = 12


class StylePlan:
    """The smoothed measurements of all frames of a video; each part is computed when it is asked for.

    `cuts`: the first frames of its shots.
    """

    def __init__(self, scans: Sequence[SegmentStatistics]) -> None:
        offsets = np.cumsum([0, *(scan.num_frames for scan in scans)])
        placed = list(zip(scans, offsets.tolist(), strict=False))
        seams = [
            int(offset)
            for (before, after), offset in zip(pairwise(scans), offsets[1:], strict=False)
            if is_cut(before.last, after.first)
        ]
        self.num_frames = int(offsets[-1])
        self.frames_K: NDArray[np.int64] = np.concatenate([scan.frames + offset for scan, offset in placed])
        self.values_KM: FloatArray = np.concatenate([scan.values for scan in scans])
        self.cuts = sorted({0, *seams, *(int(cut) + offset for scan, offset in placed for cut in scan.cuts)})

    def part(self, first: int, count: int) -> FloatArray:
        """Return the measurements of some frames: float32 [T,M]."""
        stop = first + count
        parts = []
        for begin, end in pairwise([*self.cuts, self.num_frames]):
            low, high = max(begin, first), min(end, stop)
            if low < high:
                around = max(begin, low - REACH), min(end, high + REACH)
                values_TM = smooth(self.interpolate(*around))
                parts.append(values_TM[low - around[0] : high - around[0]])
        return np.concatenate(parts)

    def interpolate(self, low: int, high: int) -> FloatArray:
        """Interpolate between the measured frames of a shot: float32 [T,M] of the frames low..high-1."""
        frames_T = np.arange(low, high)
        after = np.searchsorted(self.frames_K, frames_T)
        is_measured = self.frames_K[after] == frames_T
        before = np.where(is_measured, after, after - 1)
        gap = np.maximum(self.frames_K[after] - self.frames_K[before], 1)
        share = ((frames_T - self.frames_K[before]) / gap).astype(np.float32)[:, None]
        mixed: FloatArray = self.values_KM[before] * (1 - share) + self.values_KM[after] * share
        return mixed


def smooth(values_TM: FloatArray, reach: int = REACH) -> FloatArray:
    """Average each row with those of `reach` on each side, near ones more: what is positive stays so.

    Source of the weights: the tricube of Cleveland 1979.
    """
    count = len(values_TM)
    summed, total = np.zeros_like(values_TM), np.zeros((count, 1), np.float32)
    for offset in range(-min(reach, count - 1), min(reach, count - 1) + 1):
        weight = np.float32((1 - abs(offset / (reach + 1)) ** 3) ** 3)
        to, of = slice(max(0, -offset), count - max(0, offset)), slice(max(0, offset), count - max(0, -offset))
        summed[to] += weight * values_TM[of]
        total[to] += weight
    return summed / total
