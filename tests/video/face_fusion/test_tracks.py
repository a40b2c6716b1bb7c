"""Tracks of points whose true motion is known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fusionray.video.face_fusion.tracks import Track, fill_gaps, smooth

POINTS = np.array([[40, 50], [80, 50], [60, 70], [45, 90], [75, 90]], np.float32)


def build(frames: NDArray[np.int64], landmarks: NDArray[np.float32]) -> Track:
    boxes = np.concatenate([landmarks.min(1) - 10, np.ptp(landmarks, axis=1) + 20], axis=1)
    return Track(frames, landmarks.astype(np.float32), boxes.astype(np.float32), np.ones(len(frames), bool))


def walk(frames: NDArray[np.int64]) -> NDArray[np.float32]:
    """Move the points along a curve that no parabola follows for long: three slow turns of a head in 150 frames."""
    t = frames[:, None] / 25
    shift = np.stack([30 * np.sin(3 * t), 10 * np.cos(2 * t)], axis=2)
    return np.asarray(POINTS + shift, np.float32)


def accelerations(landmarks: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(landmarks[2:] - 2 * landmarks[1:-1] + landmarks[:-2], axis=2).mean())


def test_short_gaps_are_filled_by_what_lies_between_and_long_ones_end_the_track() -> None:
    frames = np.array([3, 4, 7, 8, 20, 21])
    track = build(frames, POINTS + frames[:, None, None].astype(np.float32))
    first, second = fill_gaps(track, longest=5)
    assert first.frames.tolist() == [3, 4, 5, 6, 7, 8]
    assert second.frames.tolist() == [20, 21]
    assert first.found.tolist() == [True, True, False, False, True, True]
    np.testing.assert_allclose(first.landmarks, POINTS + first.frames[:, None, None], atol=1e-4)
    np.testing.assert_allclose(first.boxes[:, :2], POINTS.min(0) - 10 + first.frames[:, None], atol=1e-4)
    (whole,) = fill_gaps(track, longest=11)
    assert len(whole) == 19


def test_smoothing_takes_noise_away_and_leaves_the_motion() -> None:
    frames = np.arange(150)
    truth = walk(frames)
    noisy = truth + np.random.default_rng(1).normal(0, 0.6, truth.shape).astype(np.float32)
    smoothed = smooth(build(frames, noisy)).landmarks
    assert np.abs(smoothed - truth).mean() < 0.6 * np.abs(noisy - truth).mean()
    assert accelerations(noisy) > 5 * accelerations(truth)
    assert accelerations(smoothed) < 1.2 * accelerations(truth) + 0.15


def test_smoothing_has_no_lag() -> None:
    frames = np.arange(60)
    parabola = POINTS + (0.05 * frames**2 - frames)[:, None, None].astype(np.float32)
    np.testing.assert_allclose(smooth(build(frames, parabola)).landmarks, parabola, atol=1e-3)
    # The one before and the one after count alike.
    backward = smooth(build(frames, walk(frames)[::-1])).landmarks[::-1]
    np.testing.assert_allclose(backward, smooth(build(frames, walk(frames))).landmarks, atol=1e-3)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_shortest_tracks_stay_finite(count: int) -> None:
    frames = np.arange(count)
    (track,) = fill_gaps(build(frames, walk(frames)), 5)
    assert np.abs(smooth(track).landmarks - walk(frames)).max() < 0.5
