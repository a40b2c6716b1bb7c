"""Where the faces of a target are is kept for a while, and used for other sources."""

from __future__ import annotations

import numpy as np

from fusionray.faces.face import Face
from fusionray.serving.pipeline.found_faces import FoundFaces


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


FACES = [Face(np.zeros(4, np.float32), np.zeros((5, 2), np.float32), 1.0)]


def test_faces_are_kept_by_picture_and_selection_until_their_time_is_up() -> None:
    clock = Clock()
    found = FoundFaces(60, clock)
    found.keep("a", "all", FACES)
    assert found.get("a", "all") is FACES
    assert found.get("a", "largest") is None
    assert found.get("b", "all") is None
    clock.now = 61
    assert found.get("a", "all") is None


def test_nothing_is_kept_where_the_operator_says_so() -> None:
    found = FoundFaces(0, Clock())
    assert not found.is_on
    found.keep("a", "all", FACES)
    assert found.get("a", "all") is None
