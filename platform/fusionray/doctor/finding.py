"""What a check found: how bad it is, what was seen, and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["ok", "note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("ok", "note", "warning", "error")
Action = Literal["none", "fix setting", "restart process", "reset device", "reboot", "isolate node"]


@dataclass(frozen=True)
class Finding:
    """One finding of a check. `evidence`: what was seen, with the numbers; `remedy`: what to do, empty if it is ok.

    `action`: the class of the remedy, as health checks of clusters have it; `node`: where, if a cluster was examined.
    """

    name: str
    severity: Severity
    evidence: str
    remedy: str = ""
    action: Action = "none"
    node: str = ""

    def describe(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


def find_worst(findings: list[Finding]) -> Severity:
    """Return the worst severity."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default="ok")
