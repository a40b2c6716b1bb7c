"""What the report of a painted video says."""

from __future__ import annotations

from fusionray.video.report import ReportParts
from fusionray.video.run import MadeVideo
from fusionray.video.style_transfer.plan import StylePlan


def describe_painting(made: MadeVideo, content: str, num_styles: int, model: str) -> ReportParts:
    """Say what was painted, and of how many shots. `content` and `model` by their names."""
    plan: StylePlan = made.plan
    return ReportParts(
        verb="stylize",
        lead=f"{content} painted in {num_styles} style(s) by {model}.",
        figures={
            "shots": (len(plan.cuts), "shots"),
            "frames_measured": (len(plan.frames_K), "frames"),
        },
    )
