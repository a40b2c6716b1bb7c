"""The result of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from fusionray.evaluation.report.documents import Report
from fusionray.reporting.figures import Figures


@dataclass(frozen=True)
class EvaluateResult:
    """Figures, output folder or URI, the table for the terminal, and the report, to which callers may add blocks."""

    figures: Figures
    folder: str
    table: str
    report: Report
