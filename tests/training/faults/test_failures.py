from __future__ import annotations

import pytest
import ray

from fusionray.ray_cluster.progress import ProgressHandle
from fusionray.training.faults.failures import FailureReporter, root_cause


def fail() -> Exception:
    try:
        try:
            raise ValueError("a long story\nthe batch is empty")
        except ValueError as error:
            raise RuntimeError("wrapped") from error
    except RuntimeError as error:
        return error


def test_the_cause_of_a_failure_is_its_first_exception_s_last_line() -> None:
    assert root_cause(fail()) == "ValueError: the batch is empty"
    assert root_cause(RuntimeError()) == "RuntimeError: no message"


@pytest.mark.usefixtures("ray_session")
def test_the_failure_of_a_worker_is_logged_during_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    progress = ProgressHandle()
    # The bar waits five seconds for the last state, and no longer: on a busy machine its actor starts later than that.
    ray.get(progress.actor.read.remote())
    with progress.progress_bar("train", 8, "img"):
        FailureReporter(progress, "first").after_exception(None, {1: RuntimeError("other"), 0: fail()})
        progress.set_completed(8, {"loss": 0.5})
    errors = capfd.readouterr().err
    assert "train first: worker 0 failed (ValueError: the batch is empty)" in errors
    progress.close()
    assert "8/8" in errors
    assert "loss=0.5" in errors
