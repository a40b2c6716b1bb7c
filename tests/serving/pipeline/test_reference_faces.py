"""A reference face is read once for the requests that use it at the same time, and kept for no other."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fusionray.errors import ImageRejected, NoFaceFound
from fusionray.runtime.pixels import FloatArray
from fusionray.serving.pipeline.reference_faces import ReferenceFaces

IDENTITY = np.ones(4, np.float32)


class Reader:
    """Count the readings, each of which takes a moment; raise a fault if there is one."""

    def __init__(self, fault: ImageRejected | None = None) -> None:
        self.fault = fault
        self.times = 0

    def __call__(self) -> FloatArray:
        self.times += 1
        time.sleep(0.02)
        if self.fault is not None:
            raise self.fault
        return IDENTITY


def test_threads_that_ask_at_the_same_time_cause_one_reading() -> None:
    faces, read = ReferenceFaces(), Reader()
    with faces.hold(b"a", "bundle"), ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: faces.get(b"a", "bundle", read), range(8)))
    assert all(identity is IDENTITY for identity in found)
    assert read.times == 1


def test_a_face_is_kept_until_its_last_request_ends_by_picture_and_bundle() -> None:
    faces, read = ReferenceFaces(), Reader()
    with faces.hold(b"a", "one"):
        with faces.hold(b"a", "one"), faces.hold(b"a", "two"), faces.hold(b"b", "one"):
            for key in ((b"a", "one"), (b"a", "two"), (b"b", "one"), (b"a", "one")):
                faces.get(*key, read)
            assert read.times == 3
        faces.get(b"a", "one", read)
        assert (read.times, len(faces.faces)) == (3, 1)
    assert faces.faces == {}
    with faces.hold(b"a", "one"):
        faces.get(b"a", "one", read)
    assert read.times == 4


def test_a_faulty_reference_is_read_once_and_refused_each_time() -> None:
    faces, read = ReferenceFaces(), Reader(NoFaceFound("no face"))
    with faces.hold(b"a", "bundle"):
        for _ in range(3):
            with pytest.raises(NoFaceFound, match="no face"):
                faces.get(b"a", "bundle", read)
    assert read.times == 1
