"""The people of a video: which tracks show the same person, and which source each of them gets.

Shape suffixes: N tracks, E embedding length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusionray.video.face_fusion.tracks import Track, to_unit

# Mean cosine from which the tracks of two groups show one person.
SAME_PERSON = 0.45


@dataclass(frozen=True, eq=False)
class Person:
    """The tracks of one person by their numbers, ascending, and the person's identity, float32 [E] of unit length."""

    tracks: tuple[int, ...]
    identity: NDArray[np.float32]

    def count_frames(self, tracks: Sequence[Track]) -> int:
        """Count the frames that show the person."""
        return sum(len(tracks[number]) for number in self.tracks)


def group_people(tracks: Sequence[Track], same: float = SAME_PERSON) -> list[Person]:
    """Group the tracks that have an identity by person; who is in most frames comes first.

    The two groups that are most similar are joined until the mean similarity of their tracks is below `same`. Tracks
    that share a frame are two people, however similar they are.
    """
    numbers = [number for number, track in enumerate(tracks) if track.identity is not None]
    if not numbers:
        return []
    identity_NE = np.stack([identity_of(tracks[number]) for number in numbers])
    similarity_NN = (identity_NE @ identity_NE.T).astype(np.float64)
    similarity_NN[find_overlaps([tracks[number] for number in numbers])] = -np.inf
    groups: list[list[int]] = [[place] for place in range(len(numbers))]
    while len(groups) > 1:
        # A row and a column stand for a group; those of groups that were joined into others are out of the question.
        first, second = np.unravel_index(int(np.argmax(similarity_NN)), similarity_NN.shape)
        if similarity_NN[first, second] < same:
            break
        kept, joined = sorted((int(first), int(second)))
        sizes = len(groups[kept]), len(groups[joined])
        mean_N = np.average(similarity_NN[[kept, joined]], axis=0, weights=sizes)
        similarity_NN[kept], similarity_NN[:, kept] = mean_N, mean_N
        similarity_NN[joined], similarity_NN[:, joined] = -np.inf, -np.inf
        similarity_NN[kept, kept] = -np.inf
        groups[kept] += groups[joined]
        groups[joined] = []
        if sum(map(bool, groups)) == 1:
            break
    people = [describe([numbers[place] for place in group], tracks) for group in groups if group]
    return sorted(people, key=lambda person: -person.count_frames(tracks))


def find_overlaps(tracks: Sequence[Track]) -> NDArray[np.bool_]:
    """Tell which tracks share a frame, bool [N,N]; each does with itself."""
    first = np.array([track.frames[0] for track in tracks])
    last = np.array([track.frames[-1] for track in tracks])
    return (first[:, None] <= last[None]) & (first[None] <= last[:, None])


def identity_of(track: Track) -> NDArray[np.float32]:
    assert track.identity is not None
    return track.identity


def describe(numbers: Sequence[int], tracks: Sequence[Track]) -> Person:
    """Build a person of tracks; a long track counts more."""
    weighted = [len(tracks[number]) * identity_of(tracks[number]) for number in numbers]
    return Person(tuple(sorted(numbers)), to_unit(np.sum(weighted, axis=0)))


def choose_sources(people: Sequence[Person], references: Sequence[NDArray[np.float32]], least: float) -> dict[int, int]:
    """Choose which source each track gets: the one whose reference [E] the track's person is most similar to.

    Returns the number of the source by the number of the track; nobody below the similarity `least` gets one.
    """
    chosen: dict[int, int] = {}
    for person in people:
        similarities = [float(person.identity @ reference) for reference in references]
        best = int(np.argmax(similarities)) if similarities else -1
        if best >= 0 and similarities[best] >= least:
            chosen |= dict.fromkeys(person.tracks, best)
    return chosen
