"""Detectors: the built-in one, files of the user, and the errors for missing or unusable ones."""

from __future__ import annotations

import csv
import json
import pickle
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest

from fusionray.benchmarks.face_search import check_faces
from fusionray.data.synthetic import neutral_attributes, project_landmarks, render, sample_identities
from fusionray.data.synthetic.crowd import draw_crowd
from fusionray.errors import DetectorUnavailable
from fusionray.faces.detectors import tflite
from fusionray.faces.detectors.factory import build_detector
from fusionray.faces.detectors.pyramid import Pyramid
from fusionray.faces.face import Detector, Face, group_by_face, keep_best, largest_face
from fusionray.faces.image_files.decode import decode_image


@pytest.fixture(scope="module")
def detector() -> Detector:
    return build_detector("default")


def drawn_people(count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures [N, S, S, 3] uint8 of frontal people, and their exact points [N, 5, 2] in pixels."""
    identity, attributes = sample_identities(count, 5), neutral_attributes(count)
    pictures = (render(identity, attributes, size) * 255).round().byte().permute(0, 2, 3, 1).numpy()
    return np.ascontiguousarray(pictures), project_landmarks(identity, attributes).numpy() * size - 0.5


def eye_error(face: Face, truth: np.ndarray) -> float:
    """Return the mean distance of the found eyes from the true ones, in eye distances."""
    return float(np.linalg.norm(face.landmarks[:2] - truth[:2], axis=1).mean() / np.linalg.norm(truth[1] - truth[0]))


def test_drawn_people_are_found_with_their_points(detector: Detector) -> None:
    pictures, points = drawn_people(8, 192)
    for picture, truth in zip(pictures, points, strict=True):
        faces = detector.detect(picture)
        assert len(faces) == 1
        face = faces[0]
        assert face.landmarks.shape == (5, 2)
        assert face.landmarks.dtype == np.float32
        assert eye_error(face, truth) < 0.2
        left, right, nose, mouth_left, mouth_right = face.landmarks
        assert left[0] < nose[0] < right[0]
        assert mouth_left[0] < mouth_right[0]
        assert left[1] < nose[1] < mouth_left[1]
        middle = face.box[:2] + face.box[2:] / 2
        assert np.abs(middle - nose).max() < face.box[2] / 2
        assert 0.5 <= face.score <= 1.0


def test_small_faces_among_others_are_found_in_a_large_picture(detector: Detector) -> None:
    canvas = np.full((1100, 1500, 3), 120, np.uint8)
    places = {(60, 80): 160, (900, 120): 240, (300, 500): 500, (1150, 700): 300}
    for (left, top), side in places.items():
        canvas[top : top + side, left : left + side] = drawn_people(1, side)[0][0]
    faces = detector.detect(canvas)
    assert len(faces) == len(places)
    for (left, top), side in places.items():
        inside = [face for face in faces if left < face.landmarks[2, 0] < left + side]
        assert any(top < face.landmarks[2, 1] < top + side for face in inside)
    assert 300 < largest_face(faces).landmarks[2, 0] < 800


def test_the_largest_face_is_found_without_a_search_for_small_ones(detector: Detector) -> None:
    crowd = draw_crowd(3, 1632, 1224, (33, 98), count=5, largest=400)
    every, some = detector.detect(crowd.image), detector.detect(crowd.image, only_largest=True)
    assert len(some) < len(every)
    assert np.abs(largest_face(some).landmarks - largest_face(every).landmarks).max() < 0.1 * 400
    assert check_faces(some, crowd)[0]


def test_a_small_face_is_the_largest_one_if_it_is_alone(detector: Detector) -> None:
    crowd = draw_crowd(5, 1632, 1224, (60, 61), count=1)
    assert check_faces(detector.detect(crowd.image, only_largest=True), crowd).all()


def test_narrower_faces_than_the_default_are_found_on_request() -> None:
    crowds = [draw_crowd(seed, 900, 700, (24, 34), count=6) for seed in range(3)]
    by_default, on_request = (
        sum(check_faces(build_detector("default", smallest).detect(crowd.image), crowd).sum() for crowd in crowds)
        for smallest in (None, 20.0)
    )
    assert on_request > by_default
    assert on_request >= 0.8 * sum(len(crowd.points) for crowd in crowds)


def test_a_pyramid_halves_a_picture_and_keeps_its_mean() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (301, 200, 3), np.uint8)
    pyramid = Pyramid(picture)
    assert pyramid.level(1.9)[0] is picture
    level, factor = pyramid.level(4.5)
    assert (level.shape, factor) == ((75, 50, 3), 4)
    assert abs(level.mean() - picture[:300].mean()) < 1
    assert pyramid.level(1e9)[0].shape[1] == 1


def test_no_face_is_found_in_a_picture_without_faces(detector: Detector) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
    for picture in (noise, cv2.resize(noise, (700, 600)), np.zeros((64, 64, 3), np.uint8)):
        assert detector.detect(picture) == []


@pytest.mark.parametrize("shape", [(1, 1), (3, 700), (900, 2), (17, 16)])
def test_pictures_of_any_shape_are_searched_without_a_crash(detector: Detector, shape: tuple[int, int]) -> None:
    assert detector.detect(np.full((*shape, 3), 90, np.uint8)) == []


def test_a_used_detector_can_be_pickled_to_another_process(detector: Detector) -> None:
    picture = drawn_people(1, 128)[0][0]
    here = detector.detect(picture)
    there = pickle.loads(pickle.dumps(detector)).detect(picture)
    assert np.array_equal(here[0].landmarks, there[0].landmarks)


def test_a_missing_mediapipe_package_is_named_with_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tflite, "find_spec", lambda name: None)
    with pytest.raises(DetectorUnavailable, match=r"pip install --no-deps mediapipe==0\.10\.21"):
        build_detector("default")


def test_missing_files_of_the_mediapipe_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tflite, "find_spec", lambda name: type("Spec", (), {"submodule_search_locations": ["/no"]}))
    with pytest.raises(DetectorUnavailable, match=r"face_landmark\.tflite.*0\.10\.21"):
        build_detector("default")


def test_unusable_detector_files_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DetectorUnavailable, match="no such detector file"):
        build_detector(tmp_path / "absent.onnx")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"this is no model")
    with pytest.raises(DetectorUnavailable, match="not an ONNX model"):
        build_detector(broken)
    other = tmp_path / "other.onnx"
    write_constant_model(other, {"logits": np.zeros((1, 10), np.float32)})
    with pytest.raises(DetectorUnavailable, match=r"logits.*YuNet.*SCRFD"):
        build_detector(other)


def write_constant_model(path: Path, outputs: dict[str, np.ndarray], size: int = 64) -> None:
    """An ONNX file that answers the same to every picture [1, 3, size, size]."""
    helper = onnx.helper
    nodes, infos = [], []
    for name, value in outputs.items():
        tensor = onnx.numpy_helper.from_array(value, f"{name}_value")
        nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        infos.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, value.shape))
    picture = helper.make_tensor_value_info("input.1", onnx.TensorProto.FLOAT, [1, 3, size, size])
    # An input that nothing reads would be dropped, and then there would be no size to read.
    nodes.append(helper.make_node("Identity", ["input.1"], ["unused"]))
    graph = helper.make_graph(nodes, "constant", [picture], infos)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())


def test_a_file_of_scrfd_shape_is_recognised_and_decoded(tmp_path: Path) -> None:
    size, outputs = 64, {}
    for part, width in (("score", 1), ("box", 4), ("points", 10)):
        for stride in (8, 16, 32):
            outputs[f"{part}_{stride}"] = np.zeros(((size // stride) ** 2 * 2, width), np.float32)
    # The second anchor of column 2, row 1 at stride 16 lies at (32, 16).
    row = (1 * 4 + 2) * 2 + 1
    outputs["score_16"][row] = 0.9
    outputs["box_16"][row] = [1.0, 0.5, 0.75, 1.5]
    outputs["points_16"][row] = np.array([[-0.5, 0], [0.5, 0], [0, 0.25], [-0.25, 0.5], [0.25, 0.5]]).ravel()
    path = tmp_path / "any_name.onnx"
    write_constant_model(path, outputs)
    found = build_detector(path)
    # The picture is twice as large as the model: everything comes back doubled.
    (face,) = pickle.loads(pickle.dumps(found)).detect(np.zeros((128, 128, 3), np.uint8))
    assert face.score == pytest.approx(0.9)
    assert face.box == pytest.approx([32.0, 16.0, 56.0, 64.0])
    expected = (np.array([[24, 16], [40, 16], [32, 20], [28, 24], [36, 24]]) + 0.5) * 2 - 0.5
    assert face.landmarks == pytest.approx(expected)


def test_candidates_of_one_face_are_merged_and_partial_ones_are_dropped() -> None:
    boxes = np.array([[0, 0, 10, 10], [1, 0, 10, 10], [50, 50, 8, 8], [2, 2, 4, 4], [50, 50, 8, 8]], np.float32)
    scores = np.array([0.9, 0.8, 0.7, 0.6, 0.95], np.float32)
    groups = [group.tolist() for group in group_by_face(boxes, scores, 0.3)]
    assert groups == [[4, 2], [0, 1]]
    assert keep_best(boxes, scores, 0.3) == [4, 0]
    assert keep_best(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), 0.3) == []


@pytest.mark.parametrize("name", ["yunet_n_dynamic.onnx", "yunet_n_640_640.onnx"])
def test_a_yunet_file_is_recognised_and_finds_real_and_large_faces(real_faces: Path, name: str) -> None:
    found = pickle.loads(pickle.dumps(build_detector(real_faces / "models" / name)))
    with (real_faces / "london" / "faces.csv").open() as table:
        row = next(csv.DictReader(table))
    (face,) = found.detect(decode_image((real_faces / "london" / row["file"]).read_bytes()))
    assert face.landmarks[0] == pytest.approx([float(row["reye_x"]), float(row["reye_y"])], abs=3)
    large = cv2.resize(decode_image((real_faces / "london" / row["file"]).read_bytes()), (2025, 2025))
    (again,) = found.detect(large)
    assert (again.landmarks + 0.5) / 3 - 0.5 == pytest.approx(face.landmarks, abs=8)


def test_real_faces_are_found_with_eyes_within_a_tenth_of_their_distance(detector: Detector, real_faces: Path) -> None:
    points = json.loads((real_faces / "london" / "landmarks189_neutral.json").read_text())["points"]
    errors = []
    for person in sorted(points)[::4]:
        picture = decode_image((real_faces / "london" / person / f"{person}_neutral.jpg").read_bytes())
        (face,) = detector.detect(picture)
        errors.append(eye_error(face, np.array(points[person])[:2]))
    assert np.mean(errors) < 0.05
    assert max(errors) < 0.1
