"""Clips of a moving face, which show whether a fusion is stable: rendered ones with a true fusion, or a user's.

Shape suffixes: T frames, H rows, W columns, A attributes, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionray.data import synthetic
from fusionray.data.prepare.crop import unit_view
from fusionray.data.synthetic import render_true_fusion
from fusionray.errors import InputMissing
from fusionray.faces.align import Template, estimate_alignment, warp_crop
from fusionray.faces.detect import build_detector
from fusionray.faces.face import Image, largest_face
from fusionray.metrics.measure import TRUTH_OVERSAMPLING
from fusionray.nets.pixels import to_uint8
from fusionray.types import PairBatch, SyntheticTruth

# What moves in a rendered clip; hair, clothes and background are those of its first frame.
MOVING = (
    "yaw", "pitch", "roll", "smile", "mouth_open", "brow_raise", "eye_closure", "gaze_x", "gaze_y", "light_azimuth",
)  # fmt: skip
# Fewest frames with a face in a file.
LEAST_FRAMES = 2


@dataclass(frozen=True)
class Frames:
    """Aligned frames, uint8 [T,3,S,S] RGB; `truth` is the true fusion of each, where it can be rendered."""

    target: Tensor
    truth: Tensor | None


class Clip(Protocol):
    """A description of a clip, small enough to send to a worker."""

    def load(self, template: Template, size: int) -> Frames:
        """Make the frames, aligned to a template."""
        ...


@dataclass(frozen=True, eq=False)
class RenderedClip:
    """A synthetic person who moves from one set of attributes to another, and the source that is fused in.

    `source_identity` and `target_identity` [P]; `start` and `end` [A], float32.
    """

    name: str
    source_identity: NDArray[np.float32]
    target_identity: NDArray[np.float32]
    start: NDArray[np.float32]
    end: NDArray[np.float32]
    num_frames: int

    def load(self, template: Template, size: int) -> Frames:
        """Render frames and their true fusions, each aligned by the points of its own head."""
        attributes_TA = self.move()
        target, source = (
            torch.from_numpy(identity).expand(self.num_frames, -1)
            for identity in (self.target_identity, self.source_identity)
        )
        points_T52 = synthetic.project_landmarks(target, attributes_TA).numpy() * size - 0.5
        views = [
            unit_view(estimate_alignment(points.astype(np.float32), template, size), size, size)
            for points in points_T52
        ]
        view_T23 = torch.from_numpy(np.stack(views))

        def draw(identity: Tensor) -> Tensor:
            blank = torch.empty(self.num_frames, 3, size, size, dtype=torch.uint8)
            same = torch.zeros(self.num_frames, dtype=torch.bool)
            scene = PairBatch(blank, blank, same, SyntheticTruth(identity, attributes_TA, view_T23))
            return to_uint8(render_true_fusion(scene, TRUTH_OVERSAMPLING)[0])

        return Frames(draw(target), draw(source))

    def move(self) -> Tensor:
        """Interpolate from start to end with cosine easing, [T,A]; only MOVING attributes change."""
        columns = [synthetic.ATTRIBUTE_NAMES.index(name) for name in MOVING]
        share_T1 = (1 - torch.cos(torch.linspace(0, math.pi, self.num_frames)[:, None])) / 2
        start, end = torch.from_numpy(self.start), torch.from_numpy(self.end)
        attributes_TA = start.repeat(self.num_frames, 1)
        attributes_TA[:, columns] = torch.lerp(start[columns], end[columns], share_T1)
        return attributes_TA


@dataclass(frozen=True)
class RecordedClip:
    """A video file, or a folder of pictures in the order of their names; at most `num_frames` from its start."""

    name: str
    path: str
    num_frames: int

    def load(self, template: Template, size: int) -> Frames:
        """Read frames and align the largest face of each; frames without one are left out.

        Raises: InputMissing if it cannot be read, or shows no face that moves.
        """
        detector = build_detector("default")
        crops = []
        for image in read_frames(Path(self.path)):
            faces = detector.detect(image)
            if faces:
                matrix = estimate_alignment(largest_face(faces).landmarks, template, size)
                crops.append(warp_crop(image, matrix, size))
            if len(crops) == self.num_frames:
                break
        if len(crops) < LEAST_FRAMES:
            raise InputMissing(f"{self.path}: shows a face in {len(crops)} frames; at least {LEAST_FRAMES} are needed")
        return Frames(torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).contiguous(), None)


def read_frames(path: Path) -> Iterator[Image]:
    """Yield the frames of a video file, or the pictures of a folder by name.

    Raises: InputMissing if there is nothing that can be read.
    """
    if path.is_dir():
        pictures = (cv2.imread(str(file), cv2.IMREAD_COLOR_RGB) for file in sorted(path.iterdir()) if file.is_file())
        yield from (picture for picture in pictures if picture is not None)
        return
    if not path.is_file():
        raise InputMissing(f"{path}: no such video file or folder of frames; check clips.files")
    capture = cv2.VideoCapture(str(path))
    try:
        if not capture.isOpened():
            raise InputMissing(f"{path}: not a video that can be read here; give a folder of its frames instead")
        while True:
            found, frame = capture.read()
            if not found:
                return
            yield cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)
    finally:
        capture.release()
