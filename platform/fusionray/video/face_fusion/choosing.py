"""Whose faces of a video are changed: all, those of the person in most frames, or those of people by picture."""

from __future__ import annotations

from collections.abc import Sequence

from fusionray.errors import ImageRejected
from fusionray.runtime.pixels import FloatArray
from fusionray.video.face_fusion.people import choose_sources, group_people
from fusionray.video.face_fusion.tracks import Track


def choose_main(tracks: Sequence[Track]) -> dict[int, int]:
    """Give the first source to the tracks of the person who is in most frames: its number by that of the track."""
    return dict.fromkeys(group_people(tracks)[0].tracks, 0)


def choose_all(tracks: Sequence[Track]) -> dict[int, int]:
    """Give the first source to all tracks."""
    return dict.fromkeys(range(len(tracks)), 0)


def choose_similar(
    tracks: Sequence[Track], identities: Sequence[FloatArray], least: float, names: Sequence[str]
) -> dict[int, int]:
    """Give each source to the person who is most similar to its identity, float32 [E], and at least so similar.

    Raises: ImageRejected ("no_such_face") naming the picture, by `names`, to which nobody is similar.
    """
    people = group_people(tracks)
    chosen = choose_sources(people, identities, least)
    for number, (identity, name) in enumerate(zip(identities, names, strict=True)):
        if number not in chosen.values():
            best = max(float(person.identity @ identity) for person in people)
            raise ImageRejected(
                "no_such_face",
                f"in the video nobody has a similarity of {least:g} with {name}, or more with it than with another; "
                f"the best has {best:.2f}",
            )
    return chosen
