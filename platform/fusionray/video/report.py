"""The report of a fused video: frames before and after, when faces were found, and where the seconds went."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.faces.decode import encode_image
from fusionray.faces.face import Image
from fusionray.reporting.charts import ChartLine, draw_lines
from fusionray.reporting.figures import MeasuredFigure, write_figures
from fusionray.reporting.page import Page, PageSection, PageTable, save_page
from fusionray.reporting.parts import Chart, PageImage
from fusionray.safety.provenance import Provenance
from fusionray.safety.signing import Signer
from fusionray.video.files.reader import VideoReader
from fusionray.video.fusing import FramePlan
from fusionray.video.run import FusedVideo

# Frames of the strip, and their longest side.
SHOWN_FRAMES, SHOWN_SIDE = 6, 320
# Points of the timeline.
TIMELINE_POINTS = 120


def write_report(
    folder: Path, made: FusedVideo, target: Path, output: Path, *, signer: Signer, provenance: Provenance
) -> Mapping[str, MeasuredFigure]:
    """Write report.html, report.md and figures.json into a folder; return the figures."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = measure(made)
    write_figures(folder, "fuse-video", figures)
    strip = signer.sign(encode_image(draw_strip(target, output)), "image/png", provenance)
    page = Page(
        title=f"{output.name}",
        lead=f"{target.name} with {made.plan.num_faces} faces fused by {provenance.model}. All of the lower frames are "
        "AI-made.",
        origin=f"SHA-256 of the film before it was signed: {made.film_sha256}",
        sections=[
            PageSection("Before and after", [PageImage("strip", "frames of the video before and after", strip)]),
            PageSection("Faces over time", [draw_timeline(made.plan, made.num_frames)]),
        ],
        tables=[list_seconds(made)],
    )
    save_page(folder, page)
    return figures


def measure(made: FusedVideo) -> dict[str, MeasuredFigure]:
    """List what was counted and timed."""
    filled = sum(not face.found for faces in made.plan.faces.values() for face in faces)
    fused = made.num_frames - made.num_resumed
    values: dict[str, tuple[float, str]] = {
        "frames": (made.num_frames, "frames"),
        "frames_resumed": (made.num_resumed, "frames"),
        "damaged": (made.num_damaged, "faults"),
        "frames_without_face": (made.num_frames - len(made.plan.faces), "frames"),
        "faces_found": (made.plan.num_faces - filled, "faces"),
        "faces_filled": (filled, "faces"),
        "segments": (len(made.segments), "segments"),
        "frames_per_second": (fused / made.wall_seconds, "frames/s"),
        **{f"{stage}_seconds": (seconds, "s") for stage, seconds in made.seconds.items()},
    }
    return {key: MeasuredFigure(value=value, unit=unit) for key, (value, unit) in values.items()}


def draw_strip(target: Path, output: Path) -> Image:
    """Draw some frames of the target, spread over it, above those of the result."""
    rows = [read_frames(path) for path in (target, output)]
    return np.ascontiguousarray(np.vstack([np.hstack(row) for row in rows]))


def read_frames(path: Path) -> list[Image]:
    """Read some frames, small and of equal size: spread over the video as far as its header says how long it is."""
    reader = VideoReader(path)
    start = reader.description.start_seconds or Fraction(0)
    duration = reader.description.duration_seconds or Fraction(0)
    shown: list[Image] = []
    for number in range(SHOWN_FRAMES):
        # A last frame that lasts long may begin before the time.
        frame = next(reader.read_frames(start + duration * number / SHOWN_FRAMES if number else None), None)
        picture = shown[-1] if frame is None else reader.see(frame, SHOWN_SIDE)
        shown.append(picture)
    edges = (2, 2, 2, 2, cv2.BORDER_CONSTANT)
    return [np.asarray(cv2.copyMakeBorder(picture, *edges, value=(255, 255, 255)), np.uint8) for picture in shown]


def draw_timeline(plan: FramePlan, num_frames: int) -> Chart:
    """Draw how many faces a frame had on average, over the frames: those that were found, and those of filled gaps."""
    found, filled = np.zeros(num_frames), np.zeros(num_frames)
    for number, faces in plan.faces.items():
        found[number] = sum(face.found for face in faces)
        filled[number] = len(faces) - found[number]
    bounds = np.unique(np.linspace(0, num_frames, min(TIMELINE_POINTS, num_frames) + 1).astype(int))
    middles = (bounds[:-1] + bounds[1:]) / 2

    def draw(values: NDArray[np.float64]) -> list[tuple[float, float]]:
        means = np.add.reduceat(values, bounds[:-1]) / np.diff(bounds)
        return list(zip(middles.tolist(), means.tolist(), strict=True))

    lines = [ChartLine(draw(found), "found"), ChartLine(draw(filled), "filled from both sides", "second")]
    words = "Frames without a face are those of the source, encoded anew."
    svg = draw_lines(lines, title="faces of a frame, over the frames", x_label="frame", y_label="faces of a frame")
    return Chart("timeline", "Faces that were fused", svg, words)


def list_seconds(made: FusedVideo) -> PageTable:
    """List the seconds of each stage; stages overlap."""
    fused = made.num_frames - made.num_resumed
    rows = [
        (stage, f"{seconds:.2f}", f"{fused / seconds:.1f}" if seconds else "")
        for stage, seconds in [*made.seconds.items(), ("whole run", made.wall_seconds)]
    ]
    return PageTable(
        "stages", ("stage", "seconds", "frames/s"), rows, "Stages overlap; an earlier run's are not counted."
    )
