"""What a benchmark found, judged by its goals: a table as figures and as text."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources

import yaml

from fusionray.config import Section
from fusionray.evaluation.report.figures import Figure, Figures
from fusionray.evaluation.report.goals import Goal


class Key(Section):
    """A row of the table: which part measures it, what it is, and what is wanted of it."""

    part: str
    what: str
    unit: str
    goal: Goal | None = None

    def judge(self, value: float) -> Figure:
        """Put a value beside the goal."""
        figure = Figure(value=value, unit=self.unit)
        return self.goal.judge(figure, {}) if self.goal else figure


def load_keys(bench: str) -> dict[str, Key]:
    """Read the keys of a benchmark's table, in its order."""
    text = resources.files(__package__).joinpath(f"{bench}_keys.yaml").read_text(encoding="utf-8")
    return {key: Key.model_validate(row) for key, row in yaml.safe_load(text).items()}


@dataclass
class Findings:
    """Values by key, one a round; reasons of keys that cannot be measured here; time ledgers by title, ms by part;
    notes on the circumstances.
    """

    values: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    ledgers: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        """Take over what another part found."""
        self.values |= other.values
        self.missing |= other.missing
        self.ledgers |= other.ledgers
        self.notes += other.notes

    def figures(self, keys: Mapping[str, Key]) -> dict[str, Figure]:
        """Judge the medians over the rounds, in the order of the keys."""
        return {
            name: key.judge(statistics.median(self.values[name])) for name, key in keys.items() if self.values.get(name)
        }


Row = tuple[str, str, str, str, str]
HEAD: Row = ("key", "measured", "rounds", "goal", "holds")


def list_rows(figures: Figures, findings: Findings) -> list[Row]:
    """List the rows of the table as text; what was not measured comes last, with its reason in place of a value."""
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
    """Say how far the rounds lie apart."""
    return f"{min(values):.3f} .. {max(values):.3f}" if len(values) > 1 else "-"


def write_text(figures: Figures, findings: Findings) -> str:
    """Lay the table out in columns."""
    rows = [HEAD, *list_rows(figures, findings)]
    # A reason may be longer than its column: nothing stands behind it.
    measured = [row for row in rows if row[2]]
    widths = [max(len(row[column]) for row in (measured if column else rows)) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
