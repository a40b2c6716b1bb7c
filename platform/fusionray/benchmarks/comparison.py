"""What has changed between two runs of a benchmark: each figure beside the former one, and whether it differs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from fusionray.benchmarks.results import BenchResult
from fusionray.environment import resolve_location
from fusionray.errors import InputMissing
from fusionray.reporting.figures import Figures, MeasuredFigure
from fusionray.reporting.page import PageTable, save_page

Verdict = Literal["better", "worse", "changed", "same", "only now", "only before"]
HEAD = ("key", "before", "now", "now / before", "verdict")
# Figures without rounds count as the same up to here: two runs on one machine differ by that much.
NOISE = 0.05


@dataclass(frozen=True)
class Change:
    """A figure of two runs; `ratio`: now over before, None if it cannot be computed."""

    key: str
    before: MeasuredFigure | None
    now: MeasuredFigure | None
    ratio: float | None
    verdict: Verdict

    @property
    def row(self) -> tuple[str, ...]:
        """The change as text."""
        values = [f"{each.value:.3f} {each.unit}" if each else "-" for each in (self.before, self.now)]
        return self.key, *values, "-" if self.ratio is None else f"{self.ratio:.3f}", self.verdict


def read_figures(location: str) -> Figures:
    """Read the figures.json of an earlier run.

    Raises: InputMissing.
    """
    try:
        return Figures.model_validate_json(Path(resolve_location(location)).read_bytes())
    except (OSError, ValidationError) as error:
        reason = getattr(error, "strerror", None) or "it is no figures.json"
        raise InputMissing(f"--compare {location}: cannot be read ({reason}); name one of the same benchmark") from None


def compare(before: Figures, now: Figures) -> list[Change]:
    """Compare two runs, key by key, in the order of the newer one."""
    keys = [*now.figures, *(key for key in before.figures if key not in now.figures)]
    return [compare_figure(key, before.figures.get(key), now.figures.get(key)) for key in keys]


def compare_figure(key: str, before: MeasuredFigure | None, now: MeasuredFigure | None) -> Change:
    """Compare a figure: the same if the rounds of both runs overlap; else better or worse by the side of its goal."""
    if before is None or now is None:
        return Change(key, before, now, None, "only now" if before is None else "only before")
    ratio = now.value / before.value if before.value else None
    (low, high), (former_low, former_high) = (span(each) for each in (now, before))
    if low <= former_high and former_low <= high:
        return Change(key, before, now, ratio, "same")
    # A goal with both bounds, or none, says nothing of a direction.
    wants_more, wants_less = (now.goal_low is not None, now.goal_high is not None)
    if wants_more == wants_less:
        return Change(key, before, now, ratio, "changed")
    return Change(key, before, now, ratio, "better" if (now.value > before.value) == wants_more else "worse")


def span(figure: MeasuredFigure) -> tuple[float, float]:
    """Return the rounds' range, or some percent around a figure that has none."""
    if figure.low is not None and figure.high is not None:
        return figure.low, figure.high
    margin = NOISE / 2 * abs(figure.value)
    return figure.value - margin, figure.value + margin


def add_comparison(result: BenchResult, before: Figures) -> BenchResult:
    """Add what has changed to the report and to the printed table.

    Raises: InputMissing if the figures are of another benchmark.
    """
    now = result.figures
    if before.name != now.name:
        raise InputMissing(f"--compare: holds figures of {before.name}, not of {now.name}")
    rows = [change.row for change in compare(before, now)]
    notes = [] if before.machine == now.machine else [f"Another machine: {before.machine}; now {now.machine}."]
    notes.append(f"Before: fusionray {before.code_version}. The same: ranges of rounds overlap.")
    page = replace(
        result.page, tables=[PageTable("compared with before", HEAD, rows, " ".join(notes)), *result.page.tables]
    )
    save_page(result.folder, page)
    widths = [max(len(row[column]) for row in [HEAD, *rows]) for column in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [HEAD, *rows]]
    return replace(result, page=page, table="\n".join([result.table, "", *lines, *notes]))
