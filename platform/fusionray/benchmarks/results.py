"""The output of a benchmark: figures.json, report.html, report.md, and the printed table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fusionray.benchmarks.findings import BenchKey, Findings, write_text
from fusionray.benchmarks.report import build_page
from fusionray.reporting.figures import Figures, write_figures
from fusionray.reporting.page import save_page


@dataclass(frozen=True)
class BenchResult:
    """The figures, and the printed table."""

    figures: Figures
    table: str


def write_result(folder: Path, bench: str, keys: Mapping[str, BenchKey], findings: Findings) -> BenchResult:
    """Write figures and report of the benchmark that `bench` names."""
    missing = {key: reason for key, reason in findings.missing.items() if key in keys}
    figures = write_figures(folder, f"bench-{bench}", findings.figures(keys), missing)
    save_page(folder, build_page(f"Benchmark: {bench}", figures, findings, keys))
    return BenchResult(figures, write_text(figures, findings))
