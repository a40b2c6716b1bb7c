"""Saved by two processes, resumed by one and by three: the loss curve does not notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.engine.process_group import run_group
from tests.training.engine.resharding import (
    AFTER,
    BEFORE,
    STRATEGIES,
    build,
    go_on,
    resume_under_another,
    save_and_train_on,
    train,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def saved(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_group(save_and_train_on, 2, tmp_path_factory.mktemp("group"), str(folder))[0]


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
    assert_close(saved[strategy], uninterrupted)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_process_resumes_a_run_of_two(
    saved: Any, folder: Path, uninterrupted: list[dict[str, float]], strategy: str
) -> None:
    assert_close(go_on(build("ddp"), str(folder / strategy)), uninterrupted[BEFORE:])


def test_three_processes_resume_a_run_of_two_under_another_strategy(
    saved: Any, folder: Path, uninterrupted: list[dict[str, float]], tmp_path: Path
) -> None:
    found = run_group(resume_under_another, 3, tmp_path, str(folder))[0]
    for strategy in STRATEGIES:
        assert_close(found[strategy], uninterrupted[BEFORE:])
