"""What a benchmark leaves behind: figures.json, report.md, a picture, and the table that is printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fusionray.benchmarks.drawing import draw
from fusionray.benchmarks.findings import Findings, Key, write_markdown, write_text
from fusionray.evaluation.report.figures import Figures, write_figures
from fusionray.storage import filesystem as storage

REPORT_NAME = "report.md"


@dataclass(frozen=True)
class BenchResult:
    """The figures, and the table as it is printed."""

    figures: Figures
    table: str


def write_result(folder: Path, bench: str, keys: Mapping[str, Key], findings: Findings) -> BenchResult:
    """Write figures, report and picture of the benchmark of this name."""
    missing = {key: reason for key, reason in findings.missing.items() if key in keys}
    figures = write_figures(folder, f"bench-{bench}", findings.figures(keys), missing)
    picture = f"{bench}.png"
    report = write_markdown(f"Benchmark: {bench}", figures, findings, keys, picture)
    storage.write_atomic(str(folder / REPORT_NAME), report.encode())
    storage.write_atomic(str(folder / picture), draw(figures, keys, findings.ledgers))
    return BenchResult(figures, write_text(figures, findings))
