"""Clips of a moving face, on which the stability of a fusion is measured: rendered ones, or a user's recordings.

Only rendered clips have a true fusion.

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
from fusionray.faces.detectors.factory import build_detector
from fusionray.faces.face import Image, largest_face
from fusionray.metrics.fusion_metrics import TRUTH_OVERSAMPLING
from fusionray.nets.pixels import to_uint8
from fusionray.types import PairBatch, SyntheticTruth
from fusionray.video.files.reader import VideoReader

# Attributes that change during a rendered clip; hair, clothes and background are those of its first frame.
MOVING = (
    "yaw", "pitch", "roll", "smile", "mouth_open", "brow_raise", "eye_closure", "gaze_x", "gaze_y", "light_azimuth",
)  # fmt: skip
# Fewest frames with a face that a recorded clip must have.
MIN_FRAMES = 2


@dataclass(frozen=True)
class Frames:
    """Aligned frames, uint8 [T,3,S,S] RGB; `truth`: the true fusion of each frame, for rendered clips."""

    target: Tensor
    truth: Tensor | None


class Clip(Protocol):
    """A description of a clip, small enough to send to a worker."""

    def load(self, template: Template, size: int) -> Frames:
        """Return the frames as crops of `size` px, aligned to a template."""
        ...


@dataclass(frozen=True, eq=False)
class RenderedClip:
    """A synthetic target person who moves between two sets of attributes, and the source person to fuse in.

    `source_identity`, `target_identity` float32 [P]; `start`, `end` float32 [A].
    """

    name: str
    source_identity: NDArray[np.float32]
    target_identity: NDArray[np.float32]
    start: NDArray[np.float32]
    end: NDArray[np.float32]
    num_frames: int

    def load(self, template: Template, size: int) -> Frames:
        """Render frames and their true fusions, each aligned by the exact landmarks of its frame."""
        attributes_TA = self.interpolate_attributes()
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
            scene = PairBatch(blank, blank, same, SyntheticTruth(identity, target, attributes_TA, view_T23))
            return to_uint8(render_true_fusion(scene, TRUTH_OVERSAMPLING)[0])

        return Frames(draw(target), draw(source))

    def interpolate_attributes(self) -> Tensor:
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
        """Read frames and align the largest face of each; frames without a face are left out.

        Raises: InputMissing if there is no such file, or it shows a face in too few frames; VideoRejected.
        """
        detector = build_detector("default")
        crops = []
        for image in read_frames(Path(self.path)):
            faces = detector.detect(image, only_largest=True)
            if faces:
                matrix = estimate_alignment(largest_face(faces).landmarks, template, size)
                crops.append(warp_crop(image, matrix, size))
            if len(crops) == self.num_frames:
                break
        if len(crops) < MIN_FRAMES:
            raise InputMissing(f"{self.path}: shows a face in {len(crops)} frames; at least {MIN_FRAMES} are needed")
        return Frames(torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).contiguous(), None)


def read_frames(path: Path) -> Iterator[Image]:
    """Yield the frames of a video file as they are shown, or the pictures of a folder by name.

    Raises: InputMissing if the path does not exist; VideoRejected.
    """
    if path.is_dir():
        pictures = (cv2.imread(str(file), cv2.IMREAD_COLOR_RGB) for file in sorted(path.iterdir()) if file.is_file())
        yield from (picture for picture in pictures if picture is not None)
        return
    if not path.is_file():
        raise InputMissing(f"{path}: no such video file or folder of frames; check face_fusion.clips.files")
    reader = VideoReader(path)
    yield from (reader.see(frame, max(frame.width, frame.height)) for frame in reader.read_frames())
