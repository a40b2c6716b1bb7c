"""The pictures of a report: rows of crops as PNG, curves over a training and the evaluator's ROC curve as charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fusionray.faces.decode import encode_image
from fusionray.metrics.verification import VerificationResult
from fusionray.recipes.recipe import tile
from fusionray.reporting.charts import ChartLine, draw_lines
from fusionray.reporting.parts import Chart
from fusionray.reporting.scales import format_number

Curve = Sequence[tuple[int, float]]

# Crops are enlarged by whole steps to at least this side: 64 px are too small to see on a screen.
LEAST_SIDE = 112
# Start of the logarithmic axis of false accept rates.
LEAST_RATE = 1e-6


def draw_curves(curves: Mapping[str, Curve], prefix: str = "") -> list[Chart]:
    """Draw one small chart a curve over the images seen; titles do without the prefix of the names."""
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
    """Draw true accepts over false accepts, the latter by powers of ten, with the best threshold marked."""
    rates = [(max(float(false), LEAST_RATE), float(true)) for false, true in zip(*seen_rates(result), strict=True)]
    best = int((result.true_accepts - result.false_accepts).argmax())
    place = (max(float(result.false_accepts[best]), LEAST_RATE), float(result.true_accepts[best]))
    words = f"best threshold {result.threshold:.3f}, accuracy {result.accuracy:.3f}"
    lines = [ChartLine(rates), ChartLine([place], words, "second", with_dots=True)]
    title = "Same people accepted over strangers accepted"
    svg = draw_lines(lines, title=title, x_label="share of strangers accepted", log_x=True)
    return Chart("evaluator", title, svg, "Held-out crops, every one against every other one.")


def seen_rates(result: VerificationResult) -> tuple[Sequence[float], Sequence[float]]:
    """Give false and true accepts from the first stranger that is accepted on."""
    seen = result.false_accepts > 0
    return result.false_accepts[seen].tolist(), result.true_accepts[seen].tolist()


def draw_grid(columns: Sequence[Tensor]) -> bytes:
    """Lay out columns of crops, uint8 [R,3,S,S] each, side by side."""
    grid = torch.stack([column.cpu() for column in columns], dim=1)
    enlarge = -(-LEAST_SIDE // grid.shape[-1])
    large = grid.repeat_interleave(enlarge, dim=3).repeat_interleave(enlarge, dim=4)
    return encode_image(tile(large))
