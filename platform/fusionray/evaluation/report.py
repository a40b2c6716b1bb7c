"""The report: one HTML page that needs nothing beside it."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fusionray.data import storage
from fusionray.evaluation.figures import Figures

Curve = Sequence[tuple[int, float]]

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem; text-align: left; border-bottom: 1px solid #ddd; }
td.value { text-align: right; font-variant-numeric: tabular-nums; }
img { max-width: 100%; } .holds { color: #17692b; } .fails { color: #a11; } .note { color: #555; font-size: .9rem; }
"""


@dataclass(frozen=True)
class Picture:
    """A PNG of the report with its title and what it shows."""

    title: str
    caption: str
    png: bytes


def draw_curves(curves: Mapping[str, Curve]) -> bytes:
    """Draw one small plot a curve over the images seen, as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Plot

    columns = 3
    rows = max(1, -(-len(curves) // columns))
    plot = Plot(figsize=(12, 2.6 * rows), layout="constrained")
    FigureCanvasAgg(plot)
    for index, (name, points) in enumerate(curves.items()):
        axes = plot.add_subplot(rows, columns, index + 1)
        axes.plot([images for images, _ in points], [value for _, value in points], linewidth=1.3)
        axes.set_title(name, fontsize=10)
        axes.tick_params(labelsize=8)
        axes.grid(visible=True, alpha=0.3)
    buffer = io.BytesIO()
    plot.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def write_report(path: Path, title: str, figures: Figures, pictures: Sequence[Picture]) -> None:
    """Write the page: figures first, then pictures."""
    page = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{html.escape(title)}</title>",
        f"<style>{STYLE}</style><h1>{html.escape(title)}</h1>",
        f"<p class='note'>{html.escape(figures.machine)}; fusionray {html.escape(figures.code_version)}. "
        "The faces are AI-generated.</p>",
        "<h2>Figures</h2><table><tr><th>figure</th><th>value</th><th>unit</th><th>goal</th><th></th></tr>",
        *(figure_row(figures, key) for key in figures.figures),
        "</table>",
        *(picture_block(picture) for picture in pictures),
        "</html>",
    ]
    storage.write_atomic(str(path), "\n".join(page).encode())


def figure_row(figures: Figures, key: str) -> str:
    figure = figures.figures[key]
    verdict = "" if figure.holds is None else "holds" if figure.holds else "fails"
    cells = f"<td>{html.escape(key)}</td><td class='value'>{figure.value:.4g}</td><td>{html.escape(figure.unit)}</td>"
    goal = html.escape(figure.goal or "")
    return f"<tr>{cells}<td>{goal}</td><td class='{verdict}'>{verdict}</td></tr>"


def picture_block(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode()
    return (
        f"<h2>{html.escape(picture.title)}</h2><img alt='{html.escape(picture.title)}' "
        f"src='data:image/png;base64,{data}'><p class='note'>{html.escape(picture.caption)}</p>"
    )
