"""Draw charts as SVG: curves, parallel coordinates, and strips for rows of text.

Colours are CSS classes of style.py, so that a drawing fits light and dark pages. Curves are WIDTH units wide, which a
phone shows as pixels; strips take the width of their column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from fusionray.reporting.scales import Scale, choose_ends, format_number

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 10, 36
LINE_HEIGHT = 16
AXIS_WIDTH, AXIS_HEIGHT = 116, 260
STRIP_HEIGHT = 22

LineKind = Literal["main", "second", "other"]
GoalStatus = Literal["holds", "misses", "open"]
# Shapes repeat the meaning of colours: a disc reaches its goal, a cross misses it, a diamond has no goal.
MARKS: dict[GoalStatus, str] = {
    "holds": '<circle class="mark holds" r="5.5"/>',
    "misses": '<path class="mark misses" d="M-5-5L5 5M-5 5L5-5"/>',
    "open": '<path class="mark open" d="M-6 0L0-6L6 0L0 6z"/>',
}


@dataclass(frozen=True)
class ChartLine:
    """A line through points (x, y); a line with a label gets an entry in the chart's key."""

    points: Sequence[tuple[float, float]]
    label: str = ""
    kind: LineKind = "main"
    dotted: bool = False
    with_dots: bool = False

    @property
    def style(self) -> str:
        """Return the CSS classes of the line."""
        return f"line {self.kind}{' dotted' if self.dotted else ''}"


def open_svg(width: float, height: float, title: str) -> str:
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}">'


def draw_lines(lines: Sequence[ChartLine], *, title: str, x_label: str, y_label: str = "", log_x: bool = False) -> str:
    """Draw lines over a common x axis, which is logarithmic if `log_x`; points that are not finite are left out.

    `title`: the text for screen readers.
    """
    shown = [(line, [(x, y) for x, y in line.points if math.isfinite(y) and (x > 0 or not log_x)]) for line in lines]
    labelled = [line for line in lines if line.label]
    top = TOP + LINE_HEIGHT * (len(labelled) + bool(y_label))
    xs = [x for _, points in shown for x, _ in points]
    ends = (min(xs, default=0.1), max(xs, default=1.0)) if log_x else choose_ends([0.0, *xs])
    x_scale = Scale(*ends, LEFT, WIDTH - RIGHT, log_x)
    height = HEIGHT + top - TOP
    y_scale = Scale(*choose_ends(y for _, points in shown for _, y in points), height - BOTTOM, top)
    drawn = [open_svg(WIDTH, height, title), draw_axes(x_scale, y_scale, x_label, y_label)]
    # Main lines are drawn last, over the others.
    for line, points in sorted(shown, key=lambda pair: pair[0].kind == "main"):
        places = drop_repeated_points([(x_scale.place(x), y_scale.place(y)) for x, y in points])
        drawn.append(f'<polyline class="{line.style}" points="{format_points(places)}"/>')
        dots = places if line.with_dots or len(places) == 1 else []
        drawn += [f'<circle class="dot {line.kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in dots]
    for number, line in enumerate(labelled):
        y = TOP + LINE_HEIGHT * (number + bool(y_label))
        drawn.append(draw_key(line, LEFT, y))
        drawn.append(f'<text x="{LEFT + 28}" y="{y + 4}">{escape(line.label)}</text>')
    return "".join([*drawn, "</svg>"])


def draw_key(line: ChartLine, x: float, y: float) -> str:
    """Draw the sample of a line for the key: a dot for a line of a single point."""
    if len(line.points) == 1:
        return f'<circle class="dot {line.kind}" cx="{x + 11}" cy="{y}" r="4"/>'
    return f'<path class="{line.style}" d="M{x} {y}h22"/>'


def drop_repeated_points(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Round points to half a unit and drop repeated ones: a curve of a million points keeps a few hundred."""
    rounded = [(round(2 * x) / 2, round(2 * y) / 2) for x, y in places]
    return [place for place, before in zip(rounded, [None, *rounded], strict=False) if place != before]


def draw_axes(x_scale: Scale, y_scale: Scale, x_label: str, y_label: str) -> str:
    """Draw both axes with ticks and labels, and grid lines at the ticks of y."""
    drawn = []
    for value in y_scale.ticks():
        y = y_scale.place(value)
        drawn.append(f'<path class="grid" d="M{x_scale.start} {y:.1f}H{x_scale.end}"/>')
        drawn.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{format_number(value)}</text>'
        )
    for value in x_scale.ticks():
        x = x_scale.place(value)
        drawn.append(f'<path class="axis" d="M{x:.1f} {y_scale.start}v4"/>')
        place = f'x="{x:.1f}" y="{y_scale.start + 16}" text-anchor="middle"'
        drawn.append(f'<text class="tick" {place}>{format_number(value)}</text>')
    drawn.append(f'<path class="axis" d="M{x_scale.start} {y_scale.start}H{x_scale.end}"/>')
    drawn.append(
        f'<text class="tick" x="{x_scale.end}" y="{y_scale.start + 31}" text-anchor="end">{escape(x_label)}</text>'
    )
    if y_label:
        drawn.append(f'<text class="tick" x="4" y="{TOP + 4}">{escape(y_label)}</text>')
    return "".join(drawn)


def format_points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


@dataclass(frozen=True)
class ParallelAxis:
    """An axis of parallel coordinates: its name, and its tick labels by height, 0 (bottom) to 1 (top)."""

    name: str
    ends: Sequence[tuple[float, str]]


def draw_parallel(axes: Sequence[ParallelAxis], lines: Sequence[ChartLine], *, title: str) -> str:
    """Draw each line through all axes; its points are (number of the axis, height in 0..1)."""
    labelled = [line for line in lines if line.label]
    top = TOP + LINE_HEIGHT * len(labelled) + 8
    height = top + AXIS_HEIGHT
    y_scale = Scale(0, 1, height - 2 * LINE_HEIGHT - 8, top)
    width = AXIS_WIDTH * len(axes)
    drawn = [open_svg(width, height, title)]
    for number, axis in enumerate(axes):
        x = (number + 0.5) * AXIS_WIDTH
        drawn.append(f'<path class="axis" d="M{x} {y_scale.start}V{y_scale.end}"/>')
        # The name has two lines, split at its last dot.
        for row, word in enumerate(axis.name.rsplit(".", 1)):
            place = f'x="{x}" y="{y_scale.start + 18 + 14 * row}" text-anchor="middle"'
            drawn.append(f'<text class="{"name" if number == len(axes) - 1 else ""}" {place}>{escape(word)}</text>')
    for line in sorted(lines, key=lambda line: ("other", "second", "main").index(line.kind)):
        places = [((number + 0.5) * AXIS_WIDTH, y_scale.place(share)) for number, share in line.points]
        drawn.append(f'<polyline class="{line.style}" points="{format_points(places)}"/>')
    for number, axis in enumerate(axes):
        for share, words in axis.ends:
            place = f'x="{(number + 0.5) * AXIS_WIDTH + 5}" y="{y_scale.place(share) + 4:.1f}"'
            drawn.append(f'<text class="tick" {place}>{escape(words)}</text>')
    for number, line in enumerate(labelled):
        y = TOP + LINE_HEIGHT * number
        drawn.append(f'{draw_key(line, 8, y)}<text x="36" y="{y + 4}">{escape(line.label)}</text>')
    return "".join([*drawn, "</svg>"])


def open_strip(title: str) -> str:
    return (
        f'<svg class="strip" width="100%" height="{STRIP_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f'<rect class="track" width="100%" height="{STRIP_HEIGHT}" rx="3"/>'
    )


@dataclass(frozen=True)
class MeasuredInterval:
    """A value with its interval, and the bounds of its goal; None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None
    wanted_low: float | None = None
    wanted_high: float | None = None
    holds: bool | None = None

    @property
    def status(self) -> GoalStatus:
        """Return whether the value reaches its goal."""
        return "open" if self.holds is None else "holds" if self.holds else "misses"

    def numbers(self) -> list[float]:
        """List all numbers that the strip shows."""
        numbers = (self.value, self.low, self.high, self.wanted_low, self.wanted_high)
        return [number for number in numbers if number is not None]


def choose_strip_ends(measured: MeasuredInterval, at_least: float | None = None) -> tuple[float, float]:
    """Choose the ends of a strip that includes 0, all numbers, and `at_least`, such as 1 for a share."""
    numbers = measured.numbers()
    # The zone of an open goal needs room beyond its bound.
    beyond = [1.1 * number for number in numbers if at_least is None or abs(number) > at_least]
    return choose_ends([0.0, *numbers, *beyond, *([] if at_least is None else [at_least])])


def draw_interval(measured: MeasuredInterval, ends: tuple[float, float], *, title: str) -> str:
    """Draw a value as a mark on its interval, over the zone of its goal, whose bounds are ticks."""
    scale = Scale(*ends, 0, 100)
    middle = STRIP_HEIGHT / 2
    drawn = [open_strip(title)]
    bounds = [bound for bound in (measured.wanted_low, measured.wanted_high) if bound is not None]
    if bounds:
        start = scale.place(ends[0] if measured.wanted_low is None else measured.wanted_low)
        end = scale.place(ends[1] if measured.wanted_high is None else measured.wanted_high)
        drawn.append(f'<rect class="wanted" x="{start:.2f}%" width="{end - start:.2f}%" height="{STRIP_HEIGHT}"/>')
    for bound in bounds:
        x = f"{scale.place(bound):.2f}%"
        drawn.append(f'<line class="goal" x1="{x}" x2="{x}" y1="-3" y2="{STRIP_HEIGHT + 3}"/>')
    if measured.low is not None and measured.high is not None:
        low, high = scale.place(measured.low), scale.place(measured.high)
        drawn.append(f'<line class="interval" x1="{low:.2f}%" x2="{high:.2f}%" y1="{middle}" y2="{middle}"/>')
        # The ends are higher than the mark, which would hide a short interval.
        ends_of = (f'x1="{end:.2f}%" x2="{end:.2f}%" y1="2" y2="{STRIP_HEIGHT - 2}"' for end in (low, high))
        drawn += [f'<line class="end" {place}/>' for place in ends_of]
    mark = f'<svg x="{scale.place(measured.value):.2f}%" y="{middle}" overflow="visible">{MARKS[measured.status]}</svg>'
    return "".join([*drawn, mark, "</svg>"])


def draw_bar(share: float, *, title: str) -> str:
    """Draw a bar over a share (0..1) of the strip."""
    return f'{open_strip(title)}<rect class="bar" width="{100 * share:.2f}%" height="{STRIP_HEIGHT}" rx="3"/></svg>'


def draw_stack(parts: Mapping[str, float], names: Sequence[str], *, title: str) -> str:
    """Draw parts of a whole side by side; a part's colour follows from its index in `names`."""
    total = sum(parts.values()) or 1.0
    drawn, start = [open_strip(title)], 0.0
    for name, value in parts.items():
        width = 100 * value / total
        words = f"<title>{escape(name)}: {value:.3g}</title>"
        colour = f"part{names.index(name) % 6}"
        drawn.append(
            f'<rect class="{colour}" x="{start:.2f}%" width="{width:.2f}%" height="{STRIP_HEIGHT}">{words}</rect>'
        )
        start += width
    return "".join([*drawn, "</svg>"])


def draw_sample(drawing: str) -> str:
    """Put a drawing into a legend sample of 20 px."""
    return f'<svg width="20" height="16" aria-hidden="true">{drawing}</svg>'


def explain_marks(interval: str, *, with_goals: bool, with_open: bool) -> list[tuple[str, str]]:
    """List the legend entries (sample, text) of strips with intervals. `interval`: what the intervals are."""
    place = '<svg x="10" y="8" overflow="visible">{}</svg>'
    entries = []
    if with_goals:
        wanted = '<rect class="wanted" x="4" width="16" height="16"/><path class="goal" d="M4 0V16"/>'
        entries += [
            (draw_sample(place.format(MARKS["holds"])), "value that reaches its goal"),
            (draw_sample(place.format(MARKS["misses"])), "value that misses it"),
            (draw_sample(wanted), "goal, and the zone that reaches it"),
        ]
    if with_open:
        entries.append((draw_sample(place.format(MARKS["open"])), "value without a goal"))
    if interval:
        drawing = '<path class="interval" d="M0 8H20"/><path class="end" d="M1 1V15M19 1V15"/>'
        entries.append((draw_sample(drawing), interval))
    return entries
