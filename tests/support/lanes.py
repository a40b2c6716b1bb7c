"""Tests side by side, `pytest -n 2`: one lane has all tests that start a Ray, each other file is a lane of its own.

Rays beside each other would fight for cores and ports; what the tests of a file share is made once. pytest-xdist hands
out whole lanes. Its own `--dist loadgroup` can tell them by marks, but pays no heed to the marks beside pytest 9.2.
"""

from __future__ import annotations

import json
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

RAY_LANE = "ray"
FILE_KEY = "lanes_file"
FOLDER = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def name_lane(item: pytest.Item) -> str:
    """Name what a test has to run one after the other with."""
    if "ray_session" in item.fixturenames or item.get_closest_marker("starts_ray"):  # type: ignore[attr-defined]
        return RAY_LANE
    return item.nodeid.partition("::")[0]


class LaneScheduling(LoadScopeScheduling):
    """Hand out lanes, those of most tests first; `file` is where the processes that collect write who runs where."""

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
        config.stash[FOLDER] = tempfile.TemporaryDirectory(prefix="fr-lanes-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if FOLDER in config.stash:
        config.stash[FOLDER].cleanup()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):
        return
    # All processes collect the same; whoever reads meets a whole file.
    file = Path(config.workerinput[FILE_KEY])
    part = file.with_suffix(f".{config.workerinput['workerid']}")
    part.write_text(json.dumps({item.nodeid: name_lane(item) for item in items}))
    part.replace(file)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[FILE_KEY] = str(find_file(node.config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LaneScheduling:
    return LaneScheduling(config, log, find_file(config))


def find_file(config: pytest.Config) -> Path:
    return Path(config.stash[FOLDER].name) / "lanes.json"
