"""The output of a benchmark: figures.json, figures.png, report.html, report.md, and the printed table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fusionray.benchmarks.findings import BenchKey, Findings, load_keys, write_text
from fusionray.benchmarks.machine import measure_machine
from fusionray.benchmarks.report import build_page, draw_sheet
from fusionray.reporting.figures import Figures, write_figures
from fusionray.reporting.page import Page, save_page
from fusionray.reporting.png import draw_png
from fusionray.storage import filesystem as storage

PICTURE_NAME = "figures.png"


@dataclass(frozen=True)
class BenchResult:
    """The figures, the printed table, and the page in its folder."""

    figures: Figures
    table: str
    page: Page
    folder: Path
    picture: str = PICTURE_NAME


def write_result(folder: Path, bench: str, keys: Mapping[str, BenchKey], findings: Findings) -> BenchResult:
    """Write figures and report of the benchmark that `bench` names."""
    keys, findings = {**keys, **load_keys("machine")}, replace(findings, values=findings.values | measure_machine())
    missing = {key: reason for key, reason in findings.missing.items() if key in keys}
    figures = write_figures(folder, f"bench-{bench}", findings.figures(keys), missing)
    page = build_page(f"Benchmark: {bench}", figures, findings, keys)
    save_page(folder, page)
    if figures.figures:
        sheet = draw_sheet(f"Benchmark: {bench}", figures, findings)
        storage.write_atomic(str(folder / PICTURE_NAME), draw_png(sheet))
    return BenchResult(figures, write_text(figures, findings), page, folder)
