"""Which targets may be changed: a classifier of the operator is asked about each before anything is fused.

None is shipped. It may recognise minors, nudity, or whatever else a service must not change.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
import onnxruntime
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fusionray.config import Section, in_unit
from fusionray.environment import resolve_location
from fusionray.errors import ConfigInvalid, TargetRefused
from fusionray.faces.face import Face, Image
from fusionray.onnx_errors import ONNX_ERRORS

logger = logging.getLogger("fusionray")

# A square around a face, as a multiple of the longer side of its box: classifiers of age see hair and chin.
FACE_MARGIN = 1.4


class TargetPolicyConfig(Section):
    """The classifier that is asked about a target, how it takes a picture, and at which scores it is refused."""

    model: str | None = Field(
        default=None, description="ONNX file of a classifier of pictures; null: every target is permitted."
    )
    on: Literal["picture", "face"] = Field(
        default="picture",
        description="What the classifier sees: the whole target, or a square around each face that is to be fused.",
    )
    size: int = Field(
        default=224, ge=16, le=2048, description="Side to which pictures are resized, if the model leaves it open.",
        json_schema_extra=in_unit("px"),
    )  # fmt: skip
    mean: tuple[float, float, float] = Field(
        default=(0.485, 0.456, 0.406),
        description="Subtracted from red, green and blue, which are from 0 to 1.",
        json_schema_extra=in_unit(""),
    )
    std: tuple[float, float, float] = Field(
        default=(0.229, 0.224, 0.225),
        description="Red, green and blue are divided by it, after `mean`.",
        json_schema_extra=in_unit(""),
    )
    channels: Literal["rgb", "bgr"] = Field(default="rgb", description="Order of the colours in the model's input.")
    activation: Literal["none", "sigmoid", "softmax"] = Field(
        default="softmax", description="What makes scores from 0 to 1 of the outputs; none: the model does so itself."
    )
    refuse: dict[str, float] = Field(
        default={},
        description="Rules: the number of a class in the first output, or the name of an output that has one value -> "
        "the score from which a target is refused.",
    )

    @model_validator(mode="after")
    def check_rules(self) -> TargetPolicyConfig:
        if (self.model is None) == bool(self.refuse):
            raise ValueError("model and refuse belong together: give both, or none")
        if 0.0 in self.std:
            raise ValueError("std: a colour cannot be divided by 0")
        return self


class TargetPolicy:
    """A loaded classifier and its rules. Several threads may call it."""

    def __init__(self, settings: TargetPolicyConfig) -> None:
        """Load the model, and run it once.

        Raises: ConfigInvalid naming the file, if it is not a classifier of pictures or a rule names no output of it.
        """
        assert settings.model is not None
        self.settings = settings
        self.path = Path(resolve_location(settings.model))
        try:
            options = onnxruntime.SessionOptions()
            # One picture is a short work, and all CPUs have pictures of their own.
            options.intra_op_num_threads = 1
            self.session = onnxruntime.InferenceSession(
                self.path.read_bytes(), options, providers=["CPUExecutionProvider"]
            )
        except OSError as error:
            raise self.invalid(f"cannot be read ({error.strerror}); check path and access") from None
        except ONNX_ERRORS:
            raise self.invalid("is not an ONNX model that runs here; export it again") from None
        inputs = self.session.get_inputs()
        shape = inputs[0].shape if len(inputs) == 1 else []
        if len(shape) != 4 or inputs[0].type != "tensor(float)" or 3 not in (shape[1], shape[3]):
            raise self.invalid("does not take one float32 picture [N,3,H,W] or [N,H,W,3]")
        self.input = inputs[0].name
        self.channels_first = shape[1] == 3
        sides = shape[2:] if self.channels_first else shape[1:3]
        self.sides = tuple(side if isinstance(side, int) else settings.size for side in sides)
        self.outputs = [output.name for output in self.session.get_outputs()]
        try:
            self.find_scores(np.zeros((settings.size, settings.size, 3), np.uint8))
        except (*ONNX_ERRORS, ValueError, IndexError) as error:
            raise self.invalid(f"cannot be asked ({str(error).splitlines()[0]})") from None

    @property
    def sees_faces(self) -> bool:
        """Whether the classifier sees faces, which then have to be found before it is asked."""
        return self.settings.on == "face"

    def invalid(self, fault: str) -> ConfigInvalid:
        return ConfigInvalid(f"target_policy.model: {self.path} {fault}")

    def check(self, image: Image, faces: Sequence[Face] = ()) -> None:
        """Return if a target, uint8 RGB [H, W, 3], may be changed; `faces` are those that are to be fused.

        With `on: face` and no face, the whole picture is shown.

        Raises: TargetRefused naming the rule; also if the classifier fails, since nothing is permitted without it.
        """
        per_face = self.sees_faces and faces
        for shown in [cut_square(image, face) for face in faces] if per_face else [image]:
            try:
                scores = self.find_scores(shown)
            except ONNX_ERRORS as error:
                logger.exception("target policy: the classifier failed")
                raise TargetRefused("unavailable", "the classifier of targets failed; see the log") from error
            for rule, least in self.settings.refuse.items():
                # A score that is no number permits nothing.
                if not scores[rule] < least:
                    raise TargetRefused(rule, f"the policy for targets does not permit this picture (rule {rule})")

    def find_scores(self, image: Image) -> dict[str, float]:
        """Return the score of each rule.

        Raises: ValueError if a rule names no output.
        """
        height, width = self.sides
        resized = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA).astype(np.float32) / 255.0
        values = (resized - np.array(self.settings.mean, np.float32)) / np.array(self.settings.std, np.float32)
        values = values[..., ::-1] if self.settings.channels == "bgr" else values
        values = values.transpose(2, 0, 1) if self.channels_first else values
        found = self.session.run(None, {self.input: np.ascontiguousarray(values[None], np.float32)})
        scores = [apply(self.settings.activation, np.asarray(one, np.float64).reshape(-1)) for one in found]
        return {rule: self.find_score(rule, scores) for rule in self.settings.refuse}

    def find_score(self, rule: str, scores: Sequence[NDArray[np.float64]]) -> float:
        if rule in self.outputs and scores[self.outputs.index(rule)].size == 1:
            return float(scores[self.outputs.index(rule)][0])
        if rule.isdecimal() and int(rule) < scores[0].size:
            return float(scores[0][int(rule)])
        raise ValueError(
            f"refuse: '{rule}' is neither a class of the {scores[0].size} of '{self.outputs[0]}' nor an output of "
            "one value"
        )


def apply(activation: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn outputs into scores; the softmax of one value would always be 1, so it is a sigmoid."""
    if activation == "none":
        return values
    if activation == "sigmoid" or values.size == 1:
        return np.asarray(1.0 / (1.0 + np.exp(-values.clip(-700, 700))))
    powers = np.exp(values - values.max())
    return np.asarray(powers / powers.sum())


def cut_square(image: Image, face: Face) -> Image:
    """Cut the square around a face, with a margin, as far as the picture reaches."""
    left, top, width, height = (float(value) for value in face.box)
    half = max(width, height) * FACE_MARGIN / 2
    x, y = left + width / 2, top + height / 2
    rows = slice(max(0, round(y - half)), max(1, round(y + half)))
    columns = slice(max(0, round(x - half)), max(1, round(x + half)))
    square = image[rows, columns]
    return square if square.size else image


def open_target_policy(settings: TargetPolicyConfig) -> TargetPolicy | None:
    """Open the policy of the settings; None if there is none.

    Raises: ConfigInvalid.
    """
    return None if settings.model is None else TargetPolicy(settings)
