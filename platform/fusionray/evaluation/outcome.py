"""What every evaluation gives back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fusionray.evaluation.report.documents import Report
from fusionray.evaluation.report.figures import Figures


@dataclass(frozen=True)
class EvaluateResult:
    """The figures, where their report lies, the table as it is printed, and the report for those who add to it."""

    figures: Figures
    folder: Path
    table: str
    report: Report
