"""Parallel tests, `pytest -n 2`: all tests with the Ray of the session are one lane, each other file is its own.

The fixtures of a file are made once. pytest-xdist assigns whole lanes to its processes, first the one with Ray: it
takes longest. Tests that start a Ray of their own are one more lane, the last: it fills the process beside, and no two
of them run at once. `--dist loadgroup` ignores marks under pytest 9.2.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

RAY_LANE = "ray"
OWN_RAY_LANE = "own ray"
FILE_KEY = "lanes_file"
FOLDER = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def name_lane(item: pytest.Item) -> str:
    """Name the lane of a test: the tests of a lane run one after the other."""
    if item.get_closest_marker("starts_ray"):
        return OWN_RAY_LANE
    if "ray_session" in item.fixturenames:  # type: ignore[attr-defined]
        return RAY_LANE
    return item.nodeid.partition("::")[0]


def place_lane(lane: str) -> int:
    """Return the place of a lane among all: the longest one comes first."""
    return {RAY_LANE: 0, OWN_RAY_LANE: 2}.get(lane, 1)


class LaneScheduling(LoadScopeScheduling):
    """Assign lanes in the order of the collected tests; `file`: the lane of each test, written by those who collect."""

    def __init__(self, config: pytest.Config, log: Any, file: Path) -> None:
        super().__init__(config, log)
        self.file = file

    @cached_property
    def lanes(self) -> dict[str, str]:
        """The lane of each test."""
        found: dict[str, str] = json.loads(self.file.read_text())
        return found

    def _split_scope(self, nodeid: str) -> str:
        return self.lanes[nodeid]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "starts_ray: a test that starts a Ray of its own, not that of the session")
    if not hasattr(config, "workerinput"):
        # The order of the tests decides which lane comes first, not the number of its tests.
        config.option.loadscopereorder = False
        config.stash[FOLDER] = tempfile.TemporaryDirectory(prefix="fr-lanes-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if FOLDER in config.stash:
        config.stash[FOLDER].cleanup()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):
        return
    lanes = {item.nodeid: name_lane(item) for item in items}
    sizes = Counter(lanes.values())
    # Of the lanes without Ray, those with most tests come first.
    items.sort(key=lambda item: (place_lane(lanes[item.nodeid]), -sizes[lanes[item.nodeid]]))
    # All processes collect the same tests; a file that is replaced is always whole.
    file = Path(config.workerinput[FILE_KEY])
    part = file.with_suffix(f".{config.workerinput['workerid']}")
    part.write_text(json.dumps(lanes))
    part.replace(file)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if FOLDER not in config.stash or not find_file(config).exists():
        return
    lanes = json.loads(find_file(config).read_text())
    seconds: dict[int, float] = defaultdict(float)
    for report in (each for reports in terminalreporter.stats.values() for each in reports):
        if isinstance(report, pytest.TestReport):
            seconds[place_lane(lanes[report.nodeid])] += report.duration
    terminalreporter.line(
        f"tests with the Ray of the session: {seconds[0]:.0f} s, with their own: {seconds[2]:.0f} s, without: "
        f"{seconds[1]:.0f} s"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[FILE_KEY] = str(find_file(node.config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LaneScheduling:
    return LaneScheduling(config, log, find_file(config))


def find_file(config: pytest.Config) -> Path:
    return Path(config.stash[FOLDER].name) / "lanes.json"
