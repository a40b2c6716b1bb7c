"""What the report of a fused video says of its faces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fusionray.reporting.charts import ChartLine, draw_lines
from fusionray.reporting.page import PageSection
from fusionray.reporting.parts import Chart
from fusionray.video.face_fusion.plan import FramePlan
from fusionray.video.report import ReportParts
from fusionray.video.run import MadeVideo

# Points of the timeline.
TIMELINE_POINTS = 120


def describe_fusion(made: MadeVideo, target: str, model: str) -> ReportParts:
    """Say which faces were fused, and when they were found. `target` and `model` by their names."""
    plan: FramePlan = made.plan
    filled = sum(not face.found for faces in plan.faces.values() for face in faces)
    return ReportParts(
        verb="fuse-video",
        lead=f"{target} with {plan.num_faces} faces fused by {model}.",
        figures={
            "frames_without_face": (made.num_frames - len(plan.faces), "frames"),
            "faces_found": (plan.num_faces - filled, "faces"),
            "faces_filled": (filled, "faces"),
        },
        sections=[PageSection("Faces over time", [draw_timeline(plan, made.num_frames)])],
    )


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
