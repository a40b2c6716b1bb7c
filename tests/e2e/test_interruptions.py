"""Runs that lose processes, checkpoints and rows on their way, against a run that loses nothing."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch

from fusionray.checkpoint.info import read_info
from fusionray.checkpoint.reader import load_tensors
from fusionray.cli import main
from fusionray.data.shards import read_manifest
from fusionray.hardware.processes import find_processes
from fusionray.training.faults.preemption import EXIT_STATUS
from tests.faults.driver import CONTROLLER, WORKER, meanwhile
from tests.support.tiny_shards import flip_a_bit
from tests.support.workspace import IMAGES, TINY, FusionRun, Workspace

pytestmark = pytest.mark.slow(seconds=50)


def kill(title: str) -> None:
    """Kill a process of this session's Ray."""
    found = find_processes(f"ray::{title}", variable=f"RAY_TMPDIR={os.environ['RAY_TMPDIR']}")
    assert found, f"no {title} runs"
    os.kill(found[0], signal.SIGKILL)


@pytest.fixture(scope="module")
def interrupted(prepared: Workspace) -> FusionRun:
    """A run that SIGTERM stopped; the same command has then finished it, in spite of two kills."""
    run = prepared.fusion_run("interrupted")
    status, printed = run.train_until_sigterm()
    assert status == EXIT_STATUS
    assert "stopped after SIGTERM" in printed
    assert 0 < run.checkpoints()[-1] < IMAGES

    def kill_both() -> None:
        for title in (WORKER, CONTROLLER):
            run.wait_for_checkpoint()
            kill(title)

    with meanwhile(kill_both):
        # Warm spares, as users have them: one of them takes the place of the worker.
        assert run.train("workers.warm_spares=true") == 0
    return run


@pytest.fixture(scope="module")
def uninterrupted(prepared: Workspace) -> FusionRun:
    run = prepared.fusion_run("uninterrupted")
    assert run.train() == 0
    return run


def test_an_interrupted_run_is_logged_as_one(interrupted: FusionRun) -> None:
    assert interrupted.checkpoints()[-1] == IMAGES
    client, run_id = interrupted.find_in_mlflow()
    history = client.get_metric_history(run_id, "grad_norm_generator")
    positions = [entry.step for entry in sorted(history, key=lambda entry: entry.timestamp)]
    # Successors come again past what was logged after the last checkpoint: no entry is there twice.
    step = TINY["budget"]["log_every_images"]
    assert positions == list(range(step, IMAGES + 1, step))
    # Validations stand where they were made, with the values that the checkpoint has of them.
    newest = read_info(str(interrupted.newest()))
    names = [name for name in newest.metrics if name.startswith("validation_")]
    assert names
    for name in names:
        (entry,) = client.get_metric_history(run_id, name)
        assert entry.step == IMAGES
        assert entry.value == pytest.approx(newest.metrics[name])


def test_an_interrupted_run_is_bit_for_bit_the_uninterrupted_one(
    interrupted: FusionRun, uninterrupted: FusionRun
) -> None:
    wanted = load_tensors(str(uninterrupted.newest()))
    found = load_tensors(str(interrupted.newest()))
    assert found.keys() == wanted.keys()
    # Networks, averages, optimisers: data order, augmentation and rates were those of a run without a break.
    assert [name for name, value in wanted.items() if not torch.equal(value, found[name])] == []


def test_a_plan_starts_from_what_the_run_measured(uninterrupted: FusionRun, tmp_path: Path) -> None:
    newest = uninterrupted.newest()
    timing = read_info(str(newest)).timing
    assert timing["time_step_ms"] > 0
    assert 0 < timing["save_stall_seconds"] < timing["save_seconds"]
    assert main(["plan", str(newest.parent), "--output", str(tmp_path), "workers=[1,8]", "simulation.failures=20"]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())["figures"]
    alone = figures["images_per_second_1"]["value"]
    assert 4 * alone < figures["images_per_second_8"]["value"] <= 8 * alone


def test_a_run_replaces_damaged_checkpoints_and_rows(
    prepared: Workspace, uninterrupted: FusionRun, capfd: pytest.CaptureFixture[str]
) -> None:
    newest = uninterrupted.newest()
    flip_a_bit(next(newest.glob("*.bin")))
    manifest = read_manifest(str(prepared.shards))
    assert len(manifest.files("train")) > 2
    shard, lost = (prepared.shards / name for name in manifest.files("train")[:2])
    sound = {path: path.read_bytes() for path in (shard, lost)}
    flip_a_bit(shard)
    lost.unlink()
    try:
        assert uninterrupted.train(f"budget.images={IMAGES + 160}") == 0
    finally:
        for path, data in sound.items():
            path.write_bytes(data)
    printed = capfd.readouterr().err
    assert re.search(rf"{newest.name}/\S+\.bin: does not hold what was saved .*; trying the previous one", printed)
    assert f"{lost.name}: is missing" in printed
    for path in (shard, lost):
        assert re.search(rf"worker \d: \S+/{path.name}: .*; rows of other files replace its rows", printed), path
    assert read_info(str(uninterrupted.newest())).images_seen == IMAGES + 160
    client, run_id = uninterrupted.find_in_mlflow()
    assert max(entry.value for entry in client.get_metric_history(run_id, "replaced_rows")) > 0
