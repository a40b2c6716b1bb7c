"""Where the faces of a target are is kept for a while, and used for other sources."""

from __future__ import annotations

import numpy as np
import pytest

from fusionray.errors import NoFaceFound
from fusionray.faces.face import Face
from fusionray.serving.pipeline.found_faces import FoundFaces


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Search:
    """Count the searches; each finds another face."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> list[Face]:
        self.times += 1
        return [Face(np.zeros(4, np.float32), np.zeros((5, 2), np.float32), float(self.times))]


def test_faces_are_kept_by_picture_and_selection_until_their_time_is_up() -> None:
    clock, search = Clock(), Search()
    found = FoundFaces(60, clock)
    first = found.find(b"a", "all", search)
    assert found.find(b"a", "all", search) is first
    assert found.find(b"a", "largest", search) is not first
    assert found.find(b"b", "all", search) is not first
    assert search.times == 3
    clock.now = 61
    assert found.find(b"a", "all", search) is not first


def test_nothing_is_kept_where_the_operator_says_so() -> None:
    found, search = FoundFaces(0, Clock()), Search()
    found.find(b"a", "all", search)
    found.find(b"a", "all", search)
    assert search.times == 2


def test_a_picture_without_a_face_is_searched_again() -> None:
    found, search = FoundFaces(60, Clock()), Search()

    def find_none() -> list[Face]:
        raise NoFaceFound("no face")

    with pytest.raises(NoFaceFound):
        found.find(b"a", "all", find_none)
    assert found.find(b"a", "all", search)
