"""The page of a benchmark: each figure beside its goal, where the time of a step goes, and the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusionray.benchmarks.findings import HEAD, Findings, Key, describe_spread, list_rows
from fusionray.evaluation.report.figures import Figure, Figures
from fusionray.reporting.charts import (
    Measured,
    choose_strip_ends,
    draw_interval,
    draw_sample,
    draw_stack,
    explain_marks,
)
from fusionray.reporting.page import Block, Listing, Page
from fusionray.reporting.parts import Legend, Row, Rows

Ledgers = Mapping[str, Mapping[str, float]]


def build_page(title: str, figures: Figures, findings: Findings, keys: Mapping[str, Key]) -> Page:
    """Build the page of a benchmark: figures and ledgers as charts, then folded: both as tables, and circumstances."""
    rows = [(*row, keys[row[0]].what) for row in list_rows(figures, findings)]
    return Page(
        title,
        blocks=[*show_figures(figures, findings, keys), *show_ledgers(findings.ledgers)],
        listings=[Listing("figures", (*HEAD, "what"), rows), *list_ledgers(findings.ledgers)],
        origin=f"{figures.machine}; fusionray {figures.code_version}.",
        notes=findings.notes,
    )


def show_figures(figures: Figures, findings: Findings, keys: Mapping[str, Key]) -> list[Block]:
    """Show each figure as a row: the median over the rounds, on the interval from the lowest round to the highest."""
    rows = [
        show_figure(key, figure, findings.values.get(key, ()), keys[key].what)
        for key, figure in figures.figures.items()
    ]
    legend = Legend(explain_marks("from the lowest round to the highest", with_goals=True, with_open=True))
    return [Block("Figures beside their goals", [legend, Rows(rows)])] if rows else []


def show_figure(key: str, figure: Figure, rounds: Sequence[float], what: str) -> Row:
    """Show a figure as a row."""
    low, high = (min(rounds), max(rounds)) if len(rounds) > 1 else (None, None)
    measured = Measured(figure.value, low, high, figure.goal_low, figure.goal_high, figure.holds)
    ends = choose_strip_ends(measured)
    value = f"{figure.value:.3f} {figure.unit}"
    details = [f"rounds {describe_spread(rounds)}"] if len(rounds) > 1 else []
    details += [f"goal {figure.goal}"] if figure.goal else []
    strip = draw_interval(measured, ends, title=", ".join([f"{key} {value}", *details]))
    return Row(key, strip, value, what, details, (f"{ends[0]:g}", f"{ends[1]:g}"), figure.holds)


def list_parts(ledgers: Ledgers) -> list[str]:
    """Name the parts of all ledgers, in order."""
    return list(dict.fromkeys(part for ledger in ledgers.values() for part in ledger))


def show_ledgers(ledgers: Ledgers) -> list[Block]:
    """Show the parts of each step as shares of it."""
    if not ledgers:
        return []
    names = list_parts(ledgers)
    legend = [
        (draw_sample(f'<rect class="part{number % 6}" width="20" height="16"/>'), name)
        for number, name in enumerate(names)
    ]
    rows = []
    for title, ledger in ledgers.items():
        parts = ", ".join(f"{name} {value:.1f}" for name, value in ledger.items())
        strip = draw_stack(ledger, names, title=f"{title}: {parts} ms")
        rows.append(Row(title, strip, f"{sum(ledger.values()):.0f} ms a step", details=[f"{parts} ms"]))
    return [Block("Where the time of a step goes", [Legend(legend), Rows(rows)])]


def list_ledgers(ledgers: Ledgers) -> list[Listing]:
    """Make a listing of the parts of each step."""
    if not ledgers:
        return []
    names = list_parts(ledgers)
    rows = [
        (title, *(f"{ledger.get(name, 0.0):.1f}" for name in names), f"{sum(ledger.values()):.1f}")
        for title, ledger in ledgers.items()
    ]
    return [Listing("time ledger, ms a step", ("", *names, "together"), rows)]
