"""The pictures of a report, as PNG: curves over a training, the judge's operating curve, grids of crops."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fusionray.faces.decode import encode_image
from fusionray.metrics.verification import VerificationResult
from fusionray.recipes.recipe import tile

Curve = Sequence[tuple[int, float]]

# Crops are enlarged by whole steps to at least this side: 64 px are hard to judge on a screen.
LEAST_SIDE = 112


def draw_curves(curves: Mapping[str, Curve]) -> bytes:
    """Draw one small plot a curve over the images seen."""
    columns = 3
    rows = max(1, -(-len(curves) // columns))
    plot = open_plot(12, 2.6 * rows)
    for index, (name, points) in enumerate(curves.items()):
        axes = plot.add_subplot(rows, columns, index + 1)
        axes.plot([images for images, _ in points], [value for _, value in points], linewidth=1.3)
        axes.set_title(name, fontsize=10)
        axes.tick_params(labelsize=8)
        axes.grid(visible=True, alpha=0.3)
    return close_plot(plot)


def draw_operating_curve(result: VerificationResult) -> bytes:
    """Draw true accepts over false accepts, the latter by powers of ten, with the best threshold marked."""
    plot = open_plot(6, 4)
    axes = plot.add_subplot()
    seen = result.false_accepts > 0
    axes.plot(result.false_accepts[seen], result.true_accepts[seen], linewidth=1.5)
    best = int((result.true_accepts - result.false_accepts).argmax())
    place = (max(float(result.false_accepts[best]), 1e-6), float(result.true_accepts[best]))
    axes.plot(*place, "o", label=f"best threshold {result.threshold:.3f}, accuracy {result.accuracy:.3f}")
    axes.set_xscale("log")
    axes.set_xlabel("strangers accepted (share)")
    axes.set_ylabel("same people accepted (share)")
    axes.set_ylim(0, 1.02)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="upper left", fontsize=9)
    return close_plot(plot)


def draw_grid(columns: Sequence[Tensor]) -> bytes:
    """Lay out columns of crops, uint8 [R,3,S,S] each, side by side."""
    grid = torch.stack([column.cpu() for column in columns], dim=1)
    enlarge = -(-LEAST_SIDE // grid.shape[-1])
    large = grid.repeat_interleave(enlarge, dim=3).repeat_interleave(enlarge, dim=4)
    return encode_image(tile(large))


def open_plot(width: float, height: float) -> Any:
    """Open a figure that knows no screen; inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Plot

    plot = Plot(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(plot)
    return plot


def close_plot(plot: Any) -> bytes:
    """Encode a figure."""
    buffer = io.BytesIO()
    plot.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
