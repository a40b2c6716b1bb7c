"""Failures of workers as one line each, during the run or after it."""

from __future__ import annotations

from typing import Any

import ray.train

from fusionray.ray_cluster.progress import ProgressHandle


class FailureReporter(ray.train.UserCallback):  # type: ignore[misc, unused-ignore]
    """Show the user each failure of a worker when it happens: Ray Train restarts workers silently."""

    def __init__(self, progress: ProgressHandle, run_name: str) -> None:
        self.progress = progress
        self.run_name = run_name

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Show the failure of the lowest rank that failed."""
        del run_context
        rank, error = min(worker_exceptions.items())
        self.progress.log(f"train {self.run_name}: worker {rank} failed ({root_cause(error)})")


def root_cause(error: Exception) -> str:
    """Return the type and message of the original error in a worker."""
    failures = getattr(error, "worker_failures", None)
    cause: BaseException = next(iter(failures.values())) if failures else error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    # For a dead process, Ray appends the exit type and a list of all possible causes.
    message = lines[-1].split(" Worker exit type:")[0] if lines else "no message"
    return f"{type(cause).__name__}: {message}"
