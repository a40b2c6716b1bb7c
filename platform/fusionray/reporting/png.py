"""A drawing of charts.py as a PNG, for what shows no SVG; with the light colours.

libvips draws it in a process of its own: in one that reads pictures of strangers, it may read no SVG.
"""

from __future__ import annotations

import re
import subprocess
import sys

from fusionray.reporting.style import CHARTS, PALETTE

# Pixels of the picture for one of the drawing.
SCALE = 2
DRAW = (
    "import sys, pyvips; drawing = pyvips.Image.svgload_buffer(sys.stdin.buffer.read(), scale=float(sys.argv[1])); "
    "sys.stdout.buffer.write(drawing.flatten(background=[255, 255, 255]).write_to_buffer('.png'))"
)


def draw_png(svg: str) -> bytes:
    """Draw an SVG of charts.py.

    Raises: ValueError if it is no SVG.
    """
    head, rest = svg.removeprefix("<svg ").split(">", 1)
    # The variables of CSS are those of browsers: here each colour is written out.
    style = re.sub(r"var\(--(\w+)\)", lambda match: PALETTE["light"][match[1]], CHARTS)
    whole = f'<svg xmlns="http://www.w3.org/2000/svg" {head}><style>{style}</style>{rest}'
    drawn = subprocess.run(  # noqa: S603 - this Python, on a constant program
        [sys.executable, "-c", DRAW, str(SCALE)], input=whole.encode(), capture_output=True, check=False
    )
    if drawn.returncode != 0:
        raise ValueError(f"the drawing cannot be drawn ({drawn.stderr.decode(errors='replace').strip()[-200:]})")
    return drawn.stdout
