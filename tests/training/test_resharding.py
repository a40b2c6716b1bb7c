"""Saved by two processes, resumed by one and by three: the loss curve does not notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.resharding import AFTER, BEFORE, STRATEGIES, build, go_on, spawn, train


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resharding")


@pytest.fixture(scope="module")
def saved(folder: Path) -> Any:
    return spawn("save", 2, folder)


@pytest.fixture(scope="module")
def uninterrupted() -> list[dict[str, float]]:
    return train(build("ddp"), range(BEFORE + AFTER))


def assert_close(found: list[dict[str, float]], wanted: list[dict[str, float]]) -> None:
    for losses, expected in zip(found, wanted, strict=True):
        assert losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_processes_follow_the_curve_of_one(
    saved: Any, uninterrupted: list[dict[str, float]], strategy: str
) -> None:
    assert_close(saved[strategy]["before"] + saved[strategy]["after"], uninterrupted)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_process_goes_on_from_two(
    saved: Any, folder: Path, uninterrupted: list[dict[str, float]], strategy: str
) -> None:
    assert_close(go_on(build("ddp"), str(folder / strategy)), uninterrupted[BEFORE:])


def test_three_processes_go_on_from_two_under_another_strategy(
    saved: Any, folder: Path, uninterrupted: list[dict[str, float]]
) -> None:
    found = spawn("resume", 3, folder)
    for strategy in STRATEGIES:
        assert_close(found[strategy], uninterrupted[BEFORE:])
