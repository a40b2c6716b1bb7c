"""Processes of a run are killed at random times; the result is the same as without the kills."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from fusionray.checkpoint.info import find_checkpoint, read_info
from fusionray.checkpoint.reader import load_tensors
from fusionray.cli import main
from fusionray.hardware.processes import find_processes
from fusionray.training.faults.preemption import EXIT_STATUS
from tests.faults.driver import CONTROLLER, WORKER, Driver, meanwhile, read_log_lines, wait_until
from tests.support.tiny_run import CHECKPOINT_IMAGES, LOG_IMAGES, NAME, count_images, read_steps, write_run

FAULTS = ("driver", "worker", "controller", "notice")
# Between two faults, the run writes at least two checkpoints.
IMAGES_A_FAULT = 2 * CHECKPOINT_IMAGES


def cause(driver: Driver, fault: str, chance: random.Random) -> None:
    """Cause a fault in a running run; if the run ends, start it again by the same command."""
    before = count_images(driver.output)
    if fault in ("worker", "controller"):
        victims = driver.find(WORKER if fault == "worker" else CONTROLLER)
        assert victims, f"no {fault} runs\n{driver.log}"
        driver.kill(chance.choice(victims))
        return
    driver.send(signal.SIGTERM if fault == "notice" else signal.SIGKILL)
    status = driver.wait()
    if fault == "notice":
        assert status == EXIT_STATUS, driver.log
        assert read_log_lines(driver, "stopped after SIGTERM"), driver.log
        # At once, not only when a checkpoint is due.
        assert count_images(driver.output) > before
        assert not driver.find(WORKER)
    driver.start()


@pytest.mark.slow(seconds=170)
@pytest.mark.timeout(1200)
def test_a_run_survives_the_end_of_any_of_its_processes(
    tmp_path: Path, ray_folder: str, ray_session: None, rounds: int
) -> None:
    faults = [*FAULTS] * rounds
    # `make test` is deterministic; `make chaos` is not.
    by_chance = "CHAOS_ROUNDS" in os.environ
    seed = time.time_ns() % 10**6 if by_chance else 0
    chance = random.Random(seed)
    if by_chance:
        chance.shuffle(faults)
    images = IMAGES_A_FAULT * (len(faults) + 1)
    budget = {"images": images}
    calm = write_run(tmp_path, tmp_path / "calm", budget=budget)
    assert main(["train", "--config", str(calm)]) == 0

    driver = Driver(write_run(tmp_path, tmp_path / "shaken", budget=budget, workers={"warm_spares": True}), ray_folder)
    driver.start()
    try:
        for number, fault in enumerate(faults):
            driver.wait_for_images(number * IMAGES_A_FAULT + chance.choice((1, 2)) * CHECKPOINT_IMAGES)
            time.sleep(chance.uniform(0, 0.3))
            cause(driver, fault, chance)
        assert driver.wait() == 0, driver.log
    finally:
        driver.close()

    told = f"seed {seed}, faults {faults}\n{driver.log}"
    left, right = (Path(find_checkpoint(str(output / NAME))) for output in (calm.parent, driver.output))
    assert read_info(str(right)).images_seen == images, told
    wanted, found = load_tensors(str(left)), load_tensors(str(right))
    assert [name for name, value in wanted.items() if not torch.equal(value, found[name])] == [], told
    # No entry of the tracker is missing or repeated.
    assert read_steps(f"sqlite:///{driver.output}/mlflow.db") == list(range(LOG_IMAGES, images + 1, LOG_IMAGES)), told


@pytest.mark.slow(seconds=20)
def test_a_run_without_restarts_names_the_cause_of_its_end(
    tmp_path: Path, ray_session: None, capfd: pytest.CaptureFixture[str]
) -> None:
    changes = {"workers": {"max_failures": 0, "num_workers": 1}, "budget": {"images": 100_000}}
    settings = write_run(tmp_path, tmp_path / "runs", **changes)

    def kill_a_worker() -> None:
        wait_until("a checkpoint", lambda: count_images(settings.parent) > 0)
        os.kill(find_processes(f"ray::{WORKER}", variable=f"RAY_TMPDIR={os.environ['RAY_TMPDIR']}")[0], signal.SIGKILL)

    with meanwhile(kill_a_worker):
        assert main(["train", "--config", str(settings)]) == 1
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("fusionray train: ")]
    assert line.startswith("fusionray train: run 'tiny': ")
    assert len(line) < 400
    assert count_images(settings.parent) >= CHECKPOINT_IMAGES
