"""How steady a fused film is, against its truth; and how faces are followed, against a search of every frame.

Shape suffixes: T frames, E length of an identity.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.video.context import VideoBenchContext, read_pictures
from fusionray.faces.detectors.factory import build_detector
from fusionray.faces.detectors.following import FaceFollower
from fusionray.faces.face import Face, Image
from fusionray.metrics.landmarks import landmark_acceleration
from fusionray.metrics.temporal import flicker, identity_jump, warp_error
from fusionray.runtime.fuser import Fuser
from fusionray.video.face_fusion.tracking import SAME_FACE, FaceTracker, share_of
from fusionray.video.face_fusion.tracks import Track
from fusionray.video.files.reader import VideoReader
from fusionray.video.files.writer import VideoWriter

# Side of the frames on which flow is estimated.
FLOW_SIDE = 360
# A face that changed by less than this share of what is usual for the film shows the original.
REVERTED = 0.25


def measure_steadiness(context: VideoBenchContext, tick: Callable[[], None]) -> Findings:
    """Fuse the rendered film and the clips, and compare the rendered one with its truth."""
    findings = Findings()
    output = context.output / "steady.mp4"
    made, _ = context.fuse(context.target, output)
    planned = [made.plan.faces.get(number, []) for number in range(context.config.frames)]
    # The points of the plan are in pixels of searched pictures, which are those of the film up to its size there.
    pictures = list(read_pictures(output))
    scale = pictures[0].shape[1] / context.film.width
    truth = context.film.points * scale
    points = np.stack([faces[0].points if faces else truth[number] for number, faces in enumerate(planned)])
    findings.values["landmark_acceleration_ratio"] = [landmark_acceleration(points) / landmark_acceleration(truth)]
    tick()
    true_pictures = list(read_pictures(encode_truth(context)))
    before = list(read_pictures(context.target))
    fused, target, true = (to_clip(film, context) for film in (pictures, before, true_pictures))
    findings.values["warp_error_ratio"] = [compare_warp_errors(fused, target, true)]
    findings.values["flicker"] = [flicker(true, fused)]
    if context.fuser.preprocessor.compares_faces:
        jumps = [identity_jump(embed(frames, truth, context.fuser)) for frames in (pictures, true_pictures)]
        findings.values["vidd_excess"] = [jumps[0] - jumps[1]]
    else:
        findings.missing["vidd_excess"] = "the model compares no faces"
    tick()
    reverted, counted = count_reverted(before, pictures, points)
    for clip in context.config.clips:
        before = list(read_pictures(Path(clip)))
        made, _ = context.fuse(Path(clip), output)
        places = [made.plan.faces[number][0].points for number in sorted(made.plan.faces)]
        kept = sorted(made.plan.faces)
        after = list(read_pictures(output))
        old, new = [before[number] for number in kept], [after[number] for number in kept]
        found = count_reverted(old, new, np.stack(places))
        # A frame whose face is not in the plan shows the original; whoever is not seen in a clip is not asked of it.
        reverted, counted = reverted + found[0] + len(before) - len(kept), counted + len(before)
        tick()
    findings.values["reverted_frames_per_1000"] = [1000 * reverted / counted]
    findings.notes.append(f"reverted frames: {reverted} of {counted}, {len(context.config.clips)} recorded clips")
    if context.config.bundle is None:
        findings.notes.append("the model is untrained: warp error, flicker and VIDD say nothing of a trained one")
    return findings


def compare_warp_errors(fused: Tensor, target: Tensor, true: Tensor) -> float:
    """Return the flow warping error of a fused clip over that of the true fusion; clips are [T,3,S,S] in -1..1.

    Each clip is warped along the motion that it shows: a fused one moves like its target, and the true fusion, whose
    head has another outline, like itself. Along the motion of the true fusion even the unchanged target has an error.
    """
    return warp_error(target, fused).fused / warp_error(true, true).fused


def encode_truth(context: VideoBenchContext) -> Path:
    """Write the true fusion as often as the fused film was encoded, with the same settings: that too is a change."""
    first = context.film.write(context.output / "truth-once.mp4", person=context.film.source)
    reader, path = VideoReader(first), context.output / "truth.mp4"
    with VideoWriter(path, reader.description) as writer:
        for frame in reader.read_frames():
            writer.write(frame)
    return path


def to_clip(pictures: Iterable[Image], context: VideoBenchContext) -> Tensor:
    """Return the square of the person of each frame as a clip of the metrics, [T,3,S,S] in -1..1."""
    squares = []
    for picture in pictures:
        height = picture.shape[0]
        left = round(context.film.left * picture.shape[1] / context.film.width)
        square = picture[:, left : left + height]
        squares.append(cv2.resize(square, (FLOW_SIDE, FLOW_SIDE), interpolation=cv2.INTER_AREA))
    return torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2).float() / 127.5 - 1


def embed(pictures: Sequence[Image], points: NDArray[np.float32], fuser: Fuser) -> NDArray[np.float32]:
    """Return the identities of the face in each frame by the model's own encoder, [T,E]; `points` [T,5,2] are true."""
    faces = [Face(np.array([0, 0, 1, 1], np.float32), place.astype(np.float32), 1.0) for place in points]
    pairs = zip(pictures, faces, strict=True)
    return np.stack([fuser.preprocessor.embed_face(picture, face) for picture, face in pairs])


def count_reverted(before: Sequence[Image], after: Sequence[Image], points: NDArray[np.float32]) -> tuple[int, int]:
    """Count the frames whose face looks as before, and all frames; `points` [T,5,2] are those of the face."""
    changes = []
    for old, new, place in zip(before, after, points, strict=True):
        low, high = np.maximum(place.min(0), 0).astype(int), place.max(0).astype(int) + 1
        part = np.s_[low[1] : high[1], low[0] : high[0]]
        changes.append(np.abs(old[part].astype(np.float32) - new[part]).mean())
    return int((np.array(changes) < REVERTED * np.median(changes)).sum()), len(changes)


def measure_following(context: VideoBenchContext, tick: Callable[[], None]) -> Findings:
    """Follow the faces of the film and of the clips on one thread, and search every frame."""
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        films = [context.target, *map(Path, context.config.clips)]
        found = [follow(list(read_pictures(film)), tick) for film in films]
    finally:
        cv2.setNumThreads(threads)
    milliseconds = [each for times, _, _ in found for each in times]
    hits, all_faces = sum(each for _, each, _ in found), sum(each for _, _, each in found)
    notes = [f"{all_faces} faces of {len(found)} films; the slowest of a thousand followed faces took "
             f"{np.percentile(milliseconds, 99.9):.1f} ms"]  # fmt: skip
    values = {"follow_ms": [float(np.median(milliseconds))], "follow_recall": [hits / all_faces]}
    return Findings(values, notes=notes)


def follow(pictures: Sequence[Image], tick: Callable[[], None]) -> tuple[list[float], int, int]:
    """Return the milliseconds of each followed face, and how many faces of a search of every frame are in tracks."""
    detector, follower = build_detector("default"), TimedFollower()
    tracker = FaceTracker(detector, follower)
    for picture in pictures:
        tracker.add(picture)
    tracks = tracker.finish()
    hits = total = 0
    for number, picture in enumerate(pictures):
        for face in detector.detect(picture):
            total += 1
            hits += any(is_in(face, track, number) for track in tracks)
    tick()
    return follower.milliseconds, hits, total


def is_in(face: Face, track: Track, frame: int) -> bool:
    """Tell whether a track has a face in a frame."""
    (place,) = np.nonzero(track.frames == frame)
    return any(share_of(face, Face(track.boxes[number], track.landmarks[number], 1.0)) > SAME_FACE for number in place)


class TimedFollower(FaceFollower):
    """Notes how long each face takes."""

    def __init__(self) -> None:
        super().__init__()
        self.milliseconds: list[float] = []

    def follow(self, image: Image, face: Face) -> Face | None:
        """Find a face in the next frame."""
        started = time.perf_counter()
        found = super().follow(image, face)
        self.milliseconds.append(1000 * (time.perf_counter() - started))
        return found
