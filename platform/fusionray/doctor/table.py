"""Findings as a table for people."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fusionray.doctor.finding import SEVERITIES, Finding

WIDTH, INDENT = 110, 9


def write_table(findings: Sequence[Finding]) -> str:
    """Write the findings, the worst first, each with its remedy; what is ok is a line each at the end."""
    ordered = sorted(findings, key=lambda finding: -SEVERITIES.index(finding.severity))
    lines: list[str] = []
    for finding in ordered:
        where = f"{finding.node}: " if finding.node else ""
        text = f"{where}{finding.name}: {finding.evidence}"
        lines += wrap(f"{finding.severity:<{INDENT}}{text}")
        if finding.remedy:
            lines += wrap(f"{'':<{INDENT}}-> {finding.remedy} [{finding.action}]")
    counts = {each: sum(found.severity == each for found in findings) for each in reversed(SEVERITIES)}
    return "\n".join([*lines, "", ", ".join(f"{count} {name}" for name, count in counts.items() if count)])


def wrap(line: str) -> list[str]:
    return textwrap.wrap(
        line, WIDTH, subsequent_indent=" " * (INDENT + 3), drop_whitespace=True, break_long_words=False
    )
