from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fusionray.faces.face import Face
from fusionray.video.face_fusion.people import choose_sources, group_people
from fusionray.video.face_fusion.tracks import Track

LENGTH = 64


def person(seed: int) -> NDArray[np.float32]:
    identity = np.random.default_rng(seed).normal(size=LENGTH).astype(np.float32)
    return identity / np.linalg.norm(identity)


def appear(who: int, first: int, last: int, seed: int = 0, noise: float = 0.09) -> Track:
    """Let somebody be in the frames first to last; each track sees them a little otherwise."""
    face = Face(np.array([0, 0, 50, 50], np.float32), np.zeros((5, 2), np.float32), 0.9)
    seen = person(who) + np.random.default_rng([seed, first]).normal(0, noise, LENGTH).astype(np.float32)
    frames = range(first, last + 1)
    return Track.of(frames, [face] * len(frames), [seen, person(who)])


def test_tracks_of_one_person_are_joined_and_who_is_seen_most_comes_first() -> None:
    tracks = [appear(1, 0, 9), appear(2, 0, 30), appear(1, 20, 25), appear(2, 40, 60), appear(3, 50, 52)]
    assert [found.tracks for found in group_people(tracks)] == [(1, 3), (0, 2), (4,)]


def test_two_faces_of_one_frame_are_two_people_however_similar() -> None:
    tracks = [appear(1, 0, 20), appear(1, 10, 30), appear(1, 40, 50)]
    joined = {found.tracks for found in group_people(tracks)}
    assert sum(len(found) for found in joined) == 3
    assert not any({0, 1} <= set(found) for found in joined)


def test_many_tracks_are_grouped() -> None:
    tracks = [appear(number % 7, 10 * number, 10 * number + 8) for number in range(140)]
    assert sorted(len(found.tracks) for found in group_people(tracks)) == [20] * 7


def test_tracks_without_an_identity_belong_to_nobody() -> None:
    tracks = [appear(1, 0, 9), Track.of([3], [Face(np.ones(4, np.float32), np.zeros((5, 2), np.float32), 0.9)])]
    assert [found.tracks for found in group_people(tracks)] == [(0,)]
    assert group_people(tracks[1:]) == []


def test_each_person_gets_the_source_of_the_most_similar_reference() -> None:
    tracks = [appear(1, 0, 9), appear(2, 0, 30), appear(1, 20, 25), appear(3, 50, 52)]
    chosen = choose_sources(group_people(tracks), [person(2), person(1)], least=0.5)
    assert chosen == {0: 1, 2: 1, 1: 0}
    assert choose_sources(group_people(tracks), [], least=0.5) == {}
