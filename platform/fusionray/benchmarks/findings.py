"""The findings of a benchmark, compared with its goals, as figures and as text."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Literal

import yaml

from fusionray.config import Section
from fusionray.evaluation.metric_table import Goal
from fusionray.reporting.figures import Figures, MeasuredFigure
from fusionray.reporting.parts import Chart


class BenchKey(Section):
    """A row of the table: the part that measures it, its meaning, unit and goal.

    `kind`: hardware, what the machine can do; algorithm, what does not depend on its speed; system, what users get.
    """

    part: str
    kind: Literal["hardware", "algorithm", "system"] = "system"
    what: str
    unit: str
    goal: Goal | None = None

    def compare_to_goal(self, rounds: Sequence[float]) -> MeasuredFigure:
        """Compare the median over the rounds with the goal."""
        low, high = (min(rounds), max(rounds)) if len(rounds) > 1 else (None, None)
        figure = MeasuredFigure(value=statistics.median(rounds), unit=self.unit, low=low, high=high)
        return self.goal.check(figure, {}) if self.goal else figure


def load_keys(bench: str) -> dict[str, BenchKey]:
    """Read the rows of a benchmark's table, in order."""
    text = resources.files(__package__).joinpath(f"{bench}_keys.yaml").read_text(encoding="utf-8")
    return {key: BenchKey.model_validate(row) for key, row in yaml.safe_load(text).items()}


@dataclass
class Findings:
    """Values by key, one for each round; reasons for missing keys; time breakdowns by title, ms by part; charts; notes
    on the conditions of the measurement.
    """

    values: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    breakdowns: dict[str, dict[str, float]] = field(default_factory=dict)
    charts: list[Chart] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        """Add the findings of another part."""
        self.values |= other.values
        self.missing |= other.missing
        self.breakdowns |= other.breakdowns
        self.charts += other.charts
        self.notes += other.notes

    def figures(self, keys: Mapping[str, BenchKey]) -> dict[str, MeasuredFigure]:
        """Compare the medians over the rounds with the goals, in the order of the keys."""
        return {name: key.compare_to_goal(self.values[name]) for name, key in keys.items() if self.values.get(name)}


Row = tuple[str, str, str, str, str]
HEAD: Row = ("key", "measured", "rounds", "goal", "holds")


def list_rows(figures: Figures, findings: Findings) -> list[Row]:
    """List the rows of the table as text; keys that were not measured come last, with the reason."""
    rows = [
        (
            key,
            f"{figure.value:.3f} {figure.unit}",
            describe_spread(findings.values.get(key, ())),
            figure.goal or "-",
            {True: "yes", False: "NO", None: "-"}[figure.holds],
        )
        for key, figure in figures.figures.items()
    ]
    return rows + [(key, f"not measured ({reason})", "", "", "") for key, reason in figures.not_measured.items()]


def describe_spread(values: Sequence[float]) -> str:
    """Describe the range over the rounds."""
    return f"{min(values):.3f} .. {max(values):.3f}" if len(values) > 1 else "-"


def write_text(figures: Figures, findings: Findings) -> str:
    """Format the table in columns."""
    rows = [HEAD, *list_rows(figures, findings)]
    # A reason may be wider than its column, because nothing follows it.
    measured = [row for row in rows if row[2]]
    widths = [max(len(row[column]) for row in (measured if column else rows)) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
