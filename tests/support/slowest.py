"""The slowest tests of a run, named at its end, so that the suite does not grow slow unseen; nothing fails by it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest

SHOWN = 10
# What takes longer belongs into the slow tier.
SECONDS = 20.0


def sum_seconds(reports: Iterable[pytest.TestReport]) -> dict[str, float]:
    """Sum setup, call and teardown of each test, in seconds, the slowest test first.

    A fixture that several tests share counts for the first of them.
    """
    seconds: dict[str, float] = defaultdict(float)
    for report in reports:
        seconds[report.nodeid] += report.duration
    return dict(sorted(seconds.items(), key=lambda test: (-test[1], test[0])))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = [report for reports in terminalreporter.stats.values() for report in reports]
    reports = [report for report in found if isinstance(report, pytest.TestReport)]
    seconds = sum_seconds(reports)
    slow_tier = {report.nodeid for report in reports if "slow" in report.keywords}
    if sum(seconds.values()) < SECONDS:
        return
    terminalreporter.section(f"{SHOWN} slowest tests")
    for name, spent in list(seconds.items())[:SHOWN]:
        terminalreporter.line(f"{spent:6.1f} s  {name}")
    too_slow = [name for name, spent in seconds.items() if spent > SECONDS and name not in slow_tier]
    if too_slow:
        terminalreporter.line(f"over {SECONDS:g} s, but not in the slow tier: {', '.join(too_slow)}")
