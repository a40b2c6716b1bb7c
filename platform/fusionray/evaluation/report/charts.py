"""The images and charts of a report: grids of crops as PNG, training curves and the evaluator's ROC curve as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fusionray.faces.image_files.decode import encode_image
from fusionray.metrics.verification import VerificationResult
from fusionray.recipes.recipe import tile
from fusionray.reporting.charts import ChartLine, draw_lines
from fusionray.reporting.parts import Chart
from fusionray.reporting.scales import format_number

Curve = Sequence[tuple[int, float]]

# Crops are enlarged by whole steps to at least this side: 64 px are too small to see on a screen.
MIN_SIDE = 112
# Start of the logarithmic axis of false accept rates.
MIN_RATE = 1e-6


def draw_curves(curves: Mapping[str, Curve], prefix: str = "") -> list[Chart]:
    """Draw one small chart for each curve over the images seen; the titles omit `prefix`."""
    return [
        Chart(
            name,
            name.removeprefix(prefix),
            draw_lines([ChartLine(points)], title=f"{name} over the images seen", x_label="images seen"),
            f"{points[-1][1]:.4g} after {format_number(points[-1][0])} images",
        )
        for name, points in curves.items()
        if points
    ]


def draw_operating_curve(result: VerificationResult) -> Chart:
    """Draw the ROC curve, false accept rates on a logarithmic axis, and mark the best threshold."""
    rates = [
        (max(float(false), MIN_RATE), float(true))
        for false, true in zip(*curve_after_first_false_accept(result), strict=True)
    ]
    best = int((result.true_accepts - result.false_accepts).argmax())
    place = (max(float(result.false_accepts[best]), MIN_RATE), float(result.true_accepts[best]))
    words = f"best threshold {result.threshold:.3f}, accuracy {result.accuracy:.3f}"
    lines = [ChartLine(rates), ChartLine([place], words, "second", with_dots=True)]
    title = "True accept rate over false accept rate"
    svg = draw_lines(lines, title=title, x_label="false accept rate", log_x=True)
    return Chart("evaluator", title, svg, "All pairs of held-out crops.")


def curve_after_first_false_accept(result: VerificationResult) -> tuple[Sequence[float], Sequence[float]]:
    """Return false and true accept rates where the false accept rate is above 0; the logarithmic axis has no 0."""
    seen = result.false_accepts > 0
    return result.false_accepts[seen].tolist(), result.true_accepts[seen].tolist()


def draw_grid(columns: Sequence[Tensor]) -> bytes:
    """Lay out columns of crops, uint8 [R,3,S,S] each, side by side, and encode the grid as PNG."""
    grid = torch.stack([column.cpu() for column in columns], dim=1)
    enlarge = -(-MIN_SIDE // grid.shape[-1])
    large = grid.repeat_interleave(enlarge, dim=3).repeat_interleave(enlarge, dim=4)
    return encode_image(tile(large))
