"""When the driver starts the workers again, without Ray Train."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from fusionray.errors import ClusterUnavailable, TrainingFailed
from fusionray.training.config import WorkersConfig
from fusionray.training.run import driver


@dataclass(frozen=True)
class Task:
    """What the driver reads of a task."""

    config: Any
    run_folder: str = "runs/first"
    fencing_token: str = "1"


@dataclass
class Progress:
    lines: list[str] = field(default_factory=list)

    def log(self, line: str) -> None:
        self.lines.append(line)


def run_failing(
    monkeypatch: pytest.MonkeyPatch,
    images: Iterator[int],
    *,
    max_failures: int,
    num_failures: int,
    taken_over: str = "",
) -> Any:
    """Run workers of which Ray Train gives up `num_failures` times; return fencing tokens of the starts, and lines."""
    tokens: list[str] = []
    progress: Any = Progress()

    def fit_once(task: Any, _: Any) -> None:
        tokens.append(task.fencing_token)
        if len(tokens) <= num_failures:
            raise TrainingFailed("a worker died")

    workers = WorkersConfig(max_failures=max_failures)
    task: Any = Task(SimpleNamespace(run=SimpleNamespace(name="first"), workers=workers))
    monkeypatch.setattr(driver, "fit_once", fit_once)
    monkeypatch.setattr(driver, "images_at_newest_checkpoint", lambda folder: next(images))
    monkeypatch.setattr(driver, "take_fencing_token", lambda folder: "new")
    monkeypatch.setattr(driver, "is_owner", lambda folder, token: token != taken_over)
    driver.fit_with_restarts(task, progress)
    return tokens, progress.lines


def test_a_run_that_saved_a_checkpoint_starts_again_with_a_new_fencing_token(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, lines = run_failing(monkeypatch, iter([-1, 8, 8, 16, 16]), max_failures=3, num_failures=2)
    assert tokens == ["1", "new", "new"]
    assert len(lines) == 2
    assert "a worker died; restarting the workers after 8 images" in lines[0]


def test_a_run_that_saved_no_checkpoint_since_its_last_start_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrainingFailed, match="a worker died"):
        run_failing(monkeypatch, iter([-1, 8, 8, 8]), max_failures=3, num_failures=2)


def test_a_start_that_another_one_has_taken_over_from_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrainingFailed, match="a worker died"):
        run_failing(monkeypatch, iter([-1, 8, 8, 16]), max_failures=3, num_failures=2, taken_over="new")


def test_without_allowed_failures_the_first_one_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrainingFailed, match="a worker died"):
        run_failing(monkeypatch, iter([-1, 8]), max_failures=0, num_failures=1)


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(("workers", "setting"), [({}, "num_workers"), ({"min_workers": 1_000_000}, "min_workers")])
def test_missing_cpus_are_reported_with_the_setting_that_asks_for_them(workers: dict[str, Any], setting: str) -> None:
    config = SimpleNamespace(workers=WorkersConfig(num_workers=1_000_000, device="cpu", **workers))
    task: Any = Task(config)
    progress: Any = Progress()
    with pytest.raises(ClusterUnavailable, match=rf"workers\.{setting}=1000000 x cpus_per_worker=1"):
        driver.fit_once(task, progress)


def test_object_stores_without_room_for_decoded_crops_are_told() -> None:
    def node(mebibytes: float, *, alive: bool = True) -> dict[str, object]:
        return {"Alive": alive, "Resources": {"CPU": 2.0, "object_store_memory": mebibytes * 2**20}}

    assert driver.describe_small_stores([node(256), node(4000), node(10, alive=False)]) is None
    said = driver.describe_small_stores([node(4000), node(95)])
    assert said is not None
    assert "has 95 MiB" in said
    assert "take 256" in said
