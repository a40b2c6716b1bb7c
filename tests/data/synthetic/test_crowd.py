"""Crowds of known places and sizes."""

from __future__ import annotations

import numpy as np

from fusionray.data.synthetic.crowd import draw_background, draw_crowd


def test_a_crowd_has_the_asked_sizes_and_its_truth_lies_in_the_picture() -> None:
    crowd = draw_crowd(1, 640, 480, (20, 60), count=6, largest=150)
    assert crowd.image.shape == (480, 640, 3)
    assert crowd.image.dtype == np.uint8
    assert crowd.points.shape == (len(crowd.widths), 5, 2)
    assert 2 <= len(crowd.widths) <= 7
    assert abs(crowd.widths[0] - 150) < 2
    assert (crowd.widths[1:] < 62).all()
    assert (crowd.points >= 0).all()
    assert (crowd.points < [640, 480]).all()
    assert (draw_crowd(1, 640, 480, (20, 60), count=6, largest=150).image == crowd.image).all()


def test_people_do_not_overlap_and_who_has_no_room_is_left_out() -> None:
    crowd = draw_crowd(2, 200, 200, (60, 70), count=40)
    middles = crowd.points.mean(1)
    distances = np.abs(middles[:, None] - middles).max(2) + np.eye(len(middles)) * 1e9
    assert 1 <= len(middles) < 40
    assert distances.min() > 30


def test_the_background_is_nowhere_empty() -> None:
    background = draw_background(np.random.default_rng(0), 300, 200)
    assert background.shape == (200, 300, 3)
    tiles = background[:200, :300].reshape(10, 20, 15, 20, 3).std((1, 3))
    assert tiles.min() > 1
