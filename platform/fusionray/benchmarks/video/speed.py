"""The whole against its stages alone, a plain loop, and the way over files of frames."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import cv2
import numpy as np
from av import VideoFrame

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.video.context import VideoBenchContext
from fusionray.errors import NoFaceFound
from fusionray.faces.detectors.factory import DetectorPool
from fusionray.faces.detectors.following import FaceFollower
from fusionray.faces.face import Image
from fusionray.runtime.fuser import Fuser
from fusionray.video.face_fusion.finding import SEARCH_SIDE, find_faces
from fusionray.video.face_fusion.fusing import FrameFuser
from fusionray.video.face_fusion.plan import FramePlan
from fusionray.video.face_fusion.tracking import FaceTracker
from fusionray.video.files.reader import VideoReader
from fusionray.video.files.writer import VideoWriter
from fusionray.video.segments import Segment
from fusionray.video.stages import StageSeconds

# The quality of the product's own encoding, for all.
QUALITY = {"crf": "18"}


@dataclass(frozen=True)
class StageCost:
    """What a stage costs alone: seconds, and seconds of cores."""

    wall: float
    cores: float


def measure_speed(context: VideoBenchContext, tick: Callable[[], None]) -> Findings:
    """Compare the product with the limit of the machine and with other ways, in rounds."""
    findings = Findings(notes=[f"{context.twice_frames} frames of {context.config.width} x {context.config.height}"])
    cores = len(os.sched_getaffinity(0))
    frames = context.twice_frames
    context.fuse(context.twice, context.output / "warm-up.mp4")
    for _ in range(context.config.rounds):
        _, ours = context.fuse(context.twice, context.output / "fused.mp4")
        stages = time_stages(context)
        slowest = max(cost.wall for cost in stages.values())
        work = sum(cost.cores for cost in stages.values()) + stages["decode"].cores
        limit = max(slowest, work / cores)
        plain = clock(lambda: run_plain_loop(context))
        found = {"fuse_fps": frames / ours, "vs_limit": limit / ours, "vs_plain_loop": plain / ours}
        if shutil.which("ffmpeg"):
            found["vs_frame_files"] = clock(lambda: run_over_files(context)) / ours
        for key, value in found.items():
            findings.values.setdefault(key, []).append(value)
        findings.breakdowns["core-milliseconds of a frame, each stage alone"] = {
            stage: 1000 * cost.cores / frames for stage, cost in stages.items()
        }
        tick()
    if "vs_frame_files" not in findings.values:
        findings.missing["vs_frame_files"] = "ffmpeg is not installed"
    return findings


def clock(run: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def measure_cost(run: Callable[[], object]) -> StageCost:
    """Return what a call costs this process."""
    cpu = time.process_time()
    wall = clock(run)
    return StageCost(wall, time.process_time() - cpu)


def ignore(_: int) -> None:
    """Report no frames."""


def exhaust(items: Iterable[object]) -> None:
    for _ in items:
        pass


def time_stages(context: VideoBenchContext) -> dict[str, StageCost]:
    """Run each stage alone, on frames that are there; `fuse` with as many threads as in the product."""
    reader, fuser = VideoReader(context.twice), context.fuser
    costs = {"decode": measure_cost(lambda: exhaust(reader.read_frames()))}
    frames = list(reader.read_frames())

    def find() -> None:
        tracker = FaceTracker(fuser.preprocessor.detector, FaceFollower())
        for frame in frames:
            tracker.add(reader.see(frame, SEARCH_SIDE))

    costs["find"] = measure_cost(find)
    faces = find_faces(reader, Segment(0, None, None, len(frames)), fuser, ignore, with_identities=False)
    plan = FramePlan.of(faces.tracks, dict.fromkeys(range(len(faces.tracks)), 0))
    frame_fuser = FrameFuser(reader.description, fuser, [context.source], plan)
    costs["fuse"] = measure_cost(lambda: exhaust(frame_fuser.change(enumerate(frames), StageSeconds())))

    def encode() -> None:
        with VideoWriter(context.output / "encoded.mp4", reader.description) as writer:
            for frame in frames:
                writer.write(frame)

    costs["encode"] = measure_cost(encode)
    return costs


def run_plain_loop(context: VideoBenchContext) -> None:
    """Read, search, fuse, paste and write, one whole frame after another, with the same models."""
    with av.open(str(context.twice)) as source, av.open(str(context.output / "plain.mp4"), "w") as output:
        video = add_stream(output, source.streams.video[0])
        for frame in source.decode(source.streams.video[0]):
            picture = np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
            fused = VideoFrame.from_ndarray(fuse_picture(context.fuser, context, picture))
            fused.pts, fused.time_base = frame.pts, frame.time_base
            output.mux(video.encode(fused.reformat(format="yuv420p")))
        output.mux(video.encode(None))


def add_stream(output: Any, source: Any) -> Any:
    video = output.add_stream("libx264", source.average_rate or Fraction(25), options=dict(QUALITY))
    context = video.codec_context
    context.width, context.height, context.pix_fmt = source.width, source.height, "yuv420p"
    context.time_base = source.time_base
    return video


def fuse_picture(fuser: Fuser, context: VideoBenchContext, picture: Image) -> Image:
    try:
        return fuser.fuse_source(context.source, picture, "all").image
    except NoFaceFound:
        return picture


def run_over_files(context: VideoBenchContext) -> None:
    """Write all frames to PNG files, fuse these in a pool of threads, and encode the files."""
    threads = len(os.sched_getaffinity(0))
    fuser = Fuser(context.bundle, DetectorPool("default", threads))

    def fuse(path: Path) -> None:
        picture = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
        cv2.imwrite(str(path), cv2.cvtColor(fuse_picture(fuser, context, picture), cv2.COLOR_RGB2BGR))

    with TemporaryDirectory(prefix="fusionray-frames-") as folder:
        pattern = str(Path(folder) / "%06d.png")
        call_ffmpeg("-i", str(context.twice), pattern)
        with ThreadPoolExecutor(threads) as pool:
            exhaust(pool.map(fuse, sorted(Path(folder).iterdir())))
        encoding = ["-c:v", "libx264", "-crf", QUALITY["crf"], "-pix_fmt", "yuv420p"]
        target = str(context.output / "over-files.mp4")
        call_ffmpeg("-r", str(context.film.rate), "-i", pattern, *encoding, target)


def call_ffmpeg(*arguments: str) -> None:
    subprocess.run(["ffmpeg", "-v", "error", "-y", *arguments], check=True)  # noqa: S603, S607 - the installed one
