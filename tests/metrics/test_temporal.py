from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fusionray.metrics.temporal import find_trackable, flicker, identity_jump, warp_by_flow, warp_error
from tests.support.pictures import draw_person

SIZE, FRAMES = 96, 6


def move_over_a_face(step_x: int, step_y: int) -> Tensor:
    """A clip that looks at a drawn face through a window that moves by whole pixels."""
    picture = torch.tensor(draw_person(3, 192)).permute(2, 0, 1) / 127.5 - 1
    places = [(30 + step_y * index, 40 + step_x * index) for index in range(FRAMES)]
    return torch.stack([picture[:, y : y + SIZE, x : x + SIZE] for y, x in places])


def noise(deviation: float) -> Tensor:
    return deviation * torch.randn(FRAMES, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))


def change_between_frames(clip: Tensor) -> float:
    """Mean squared change of RGB in [0,1]."""
    return float((clip.diff(dim=0) / 2).square().mean())


@pytest.mark.parametrize("step", [(2, 1), (-3, 2)])
def test_a_moved_clip_has_next_to_no_warp_error(step: tuple[int, int]) -> None:
    clip = move_over_a_face(*step)
    error = warp_error(clip, clip)
    assert error.fused == error.target
    assert 0 < error.fused < 0.01 * change_between_frames(clip)
    assert flicker(clip, clip) == 0


def test_a_change_that_moves_with_the_face_is_steady() -> None:
    clip = move_over_a_face(2, 1)
    darker = clip * 0.5 - 0.2
    error = warp_error(clip, darker)
    # Half the contrast leaves a quarter of the squared error.
    assert error.fused == pytest.approx(error.target / 4, rel=1e-3)
    assert flicker(clip, clip * 0.99 + 0.01) > 0


def test_noise_of_every_frame_is_seen_by_both() -> None:
    still = move_over_a_face(0, 0)
    noisy = still + noise(0.1)
    # Of normal noise s in [0,1], E|n_t - n_(t-1)| = 2 s / sqrt(pi) and E(n_t - n_(t-1))^2 = 2 s^2.
    assert flicker(still, noisy) == pytest.approx(2 * 0.05 / math.sqrt(math.pi), rel=0.01)
    error = warp_error(still, noisy)
    assert error.target == 0
    assert error.fused == pytest.approx(2 * 0.05**2, rel=0.01)


def test_the_motion_is_that_of_the_target_and_not_of_the_fused_clip() -> None:
    moving = move_over_a_face(2, 1)
    frozen = moving[:1].expand_as(moving)
    error = warp_error(moving, frozen)
    assert error.fused > 100 * error.target
    assert warp_error(frozen, moving).fused == pytest.approx(change_between_frames(moving), rel=1e-3)


def test_a_pixel_that_comes_into_view_is_not_trackable() -> None:
    still = np.zeros((12, 12, 2), np.float32)
    assert find_trackable(still, still).all()
    there = still.copy()
    there[4:8, 4:8] = 5
    expected = np.ones((12, 12), bool)
    expected[4:8, 4:8] = False
    assert (find_trackable(still, there) == expected).all()
    # Flows that undo one another agree, as far as the frame reaches.
    right = np.full((12, 12, 2), (3, 0), np.float32)
    expected = np.ones((12, 12), bool)
    expected[:, 9:] = False
    assert (find_trackable(right, -right) == expected).all()
    # What counts is the flow at the place that a pixel leads to, not at the pixel itself.
    there = -right
    there[:, :6] = 0
    expected[:, :3] = False
    assert (find_trackable(right, there) == expected).all()


def test_a_step_without_trackable_pixels_is_left_out() -> None:
    random = torch.Generator().manual_seed(2)
    unrelated = F.interpolate(torch.rand(2, 3, 2, 2, generator=random) * 2 - 1, size=16, mode="bilinear")
    assert all(math.isnan(error) for error in warp_error(unrelated, unrelated))
    standing_still_at_last = torch.cat([unrelated, unrelated[1:]])
    assert warp_error(standing_still_at_last, standing_still_at_last) == (0, 0)


def test_values_are_taken_from_where_the_flow_leads() -> None:
    values = np.arange(20, dtype=np.float32).reshape(4, 5, 1)
    flow = np.zeros((4, 5, 2), np.float32)
    flow[..., 0], flow[..., 1] = 1, 2
    assert warp_by_flow(values, flow)[0, 0] == values[2, 1]
    flow[..., 0] = 0.5
    assert warp_by_flow(values, flow)[1, 1] == (values[3, 1] + values[3, 2]) / 2


@pytest.mark.parametrize("measure", [flicker, warp_error])
def test_clips_that_cannot_be_compared_are_refused(measure: Callable[[Tensor, Tensor], object]) -> None:
    clip = torch.zeros(3, 3, 16, 16)
    with pytest.raises(ValueError, match="at least two frames"):
        measure(clip[:1], clip[:1])
    with pytest.raises(ValueError, match="differ"):
        measure(clip, clip[:2])


def test_a_person_who_stays_the_same_does_not_jump() -> None:
    still = np.tile(np.eye(4, dtype=np.float32)[:1], (5, 1))
    assert identity_jump(still) == 0
    other = still.copy()
    other[3] = np.eye(4, dtype=np.float32)[1]
    # Two of four steps lead to someone else, and back.
    assert identity_jump(other) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="at least two frames"):
        identity_jump(still[:1])
