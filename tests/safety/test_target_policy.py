"""A classifier of the operator decides which targets are changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from pydantic import ValidationError

from fusionray.errors import ConfigInvalid, TargetRefused
from fusionray.faces.face import Face
from fusionray.safety.target_policy import TargetPolicy, TargetPolicyConfig, open_target_policy
from tests.support.pictures import draw_person
from tests.support.target_classifier import IN_RANGE, write_classifier

RED = np.full((80, 120, 3), (250, 10, 20), np.uint8)
GREEN = np.full((80, 120, 3), (10, 250, 20), np.uint8)


def build(path: Path, **settings: Any) -> TargetPolicy:
    policy = open_target_policy(TargetPolicyConfig.model_validate({"model": str(path), **IN_RANGE, **settings}))
    assert policy is not None
    return policy


def test_without_a_model_there_is_no_policy() -> None:
    assert open_target_policy(TargetPolicyConfig()) is None


@pytest.mark.parametrize("channels_first", [True, False])
def test_a_target_is_refused_by_class_or_by_output(tmp_path: Path, channels_first: bool) -> None:
    model = write_classifier(tmp_path / "red.onnx", channels_first=channels_first)
    for rule in ("0", "red"):
        policy = build(model, refuse={rule: 0.9})
        policy.check(GREEN)
        with pytest.raises(TargetRefused, match=f"rule {rule}") as caught:
            policy.check(RED)
        assert caught.value.rule == rule
    build(model, refuse={"red": 0.9}, channels="bgr").check(RED)


def test_settings_say_how_pictures_and_scores_are_scaled(tmp_path: Path) -> None:
    model = write_classifier(tmp_path / "red.onnx")
    scaled = build(model, refuse={"red": 0.0}, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    assert scaled.find_scores(RED)["red"] == pytest.approx((250 / 255 - 0.5) / 0.25, abs=1e-4)
    sigmoid = build(model, refuse={"red": 0.5}, activation="sigmoid")
    assert sigmoid.find_scores(RED)["red"] == pytest.approx(1 / (1 + np.exp(-250 / 255)), abs=1e-4)


def test_a_face_is_shown_alone_if_the_settings_say_so(tmp_path: Path) -> None:
    model = write_classifier(tmp_path / "red.onnx")
    picture = np.concatenate([RED, GREEN, GREEN, GREEN], axis=1)
    red = Face(np.float32([30, 20, 40, 40]), np.zeros((5, 2), np.float32), 1.0)
    green = Face(np.float32([230, 20, 40, 40]), np.zeros((5, 2), np.float32), 1.0)
    whole, faces = (build(model, refuse={"red": 0.8}, on=on) for on in ("picture", "face"))
    whole.check(picture, [red, green])
    faces.check(picture, [green])
    with pytest.raises(TargetRefused):
        faces.check(picture, [green, red])


def test_a_score_that_is_no_number_permits_nothing(tmp_path: Path) -> None:
    policy = build(write_classifier(tmp_path / "red.onnx", divide_by=0.0), refuse={"red": 0.9})
    with pytest.raises(TargetRefused):
        policy.check(np.zeros_like(RED))


def test_a_file_that_cannot_be_asked_is_named(tmp_path: Path) -> None:
    good = write_classifier(tmp_path / "red.onnx")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "y")]
    other = tmp_path / "other.onnx"
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "other", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), other)
    for model, rule, words in (
        (tmp_path / "none.onnx", "0", "cannot be read"),
        (broken, "0", "is not an ONNX model"),
        (other, "0", "does not take one float32 picture"),
        (good, "7", "'7' is neither a class of the 1"),
        (good, "minor", "'minor' is neither a class"),
    ):
        with pytest.raises(ConfigInvalid, match=words) as caught:
            build(model, refuse={rule: 0.5})
        assert str(model) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("settings", [{"model": "a.onnx"}, {"refuse": {"0": 0.5}}, {"std": (1, 0, 1)}])
def test_settings_that_do_not_belong_together_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TargetPolicyConfig.model_validate(settings)


def test_a_rendered_person_is_asked_about(tmp_path: Path) -> None:
    person = draw_person(1)
    policy = build(write_classifier(tmp_path / "red.onnx"), refuse={"red": 2.0})
    assert policy.find_scores(person)["red"] == pytest.approx(person[..., 0].mean() / 255, abs=0.01)
