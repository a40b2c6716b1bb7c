"""A rendered film: its truth fits its frames, and it speaks when its mouth is open."""

from __future__ import annotations

import itertools
from pathlib import Path

import av
import numpy as np

from fusionray.data import synthetic
from fusionray.evaluation.rendered_film import RenderedFilm
from fusionray.faces.detectors.factory import build_detector
from fusionray.faces.face import largest_face
from fusionray.video.files.describing import describe_video

FILM = RenderedFilm(width=320, height=256, num_frames=30)


def test_the_true_points_lie_where_the_face_is() -> None:
    detector = build_detector("default")
    for picture, points in itertools.islice(zip(FILM.draw(), FILM.points, strict=True), 3):
        found = largest_face(detector.detect(picture)).landmarks
        eyes = np.linalg.norm(points[1] - points[0])
        assert np.abs(found[:2].mean(0) - points[:2].mean(0)).max() < 0.3 * eyes


def test_the_true_fusion_has_the_movement_of_the_target() -> None:
    target, truth = (list(itertools.islice(FILM.draw(person), 2)) for person in (None, FILM.source))
    for frame, fused in zip(target, truth, strict=True):
        # Beside the person the frames are the same; the face is another.
        np.testing.assert_array_equal(frame[:, : FILM.left], fused[:, : FILM.left])
        assert np.abs(frame.astype(int) - fused).mean() > 2


def test_the_head_moves_without_a_jump() -> None:
    steps = np.linalg.norm(np.diff(FILM.points, axis=0), axis=2).mean(1)
    assert steps.sum() > 2
    assert steps.max() < 0.05 * FILM.height


def test_a_film_has_its_frames_and_a_voice_as_long_as_they_last(tmp_path: Path) -> None:
    path = FILM.write(tmp_path / "film.mp4", repeat=2)
    described = describe_video(path)
    assert (described.num_frames, described.width, described.height) == (60, 320, 256)
    with av.open(str(path)) as container:
        sound = np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], axis=1)[0]
    assert abs(len(sound) / 48_000 - 60 / 25) < 0.1
    mouth = FILM.attributes[:, synthetic.ATTRIBUTE_NAMES.index("mouth_open")].numpy()
    widest = int(mouth.argmax()) * 48_000 // 25
    assert np.abs(sound[widest : widest + 960]).mean() > 2 * np.abs(sound).mean() * (mouth.mean() / mouth.max())
