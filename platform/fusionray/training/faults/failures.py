"""What went wrong in a worker, in one line, while the run goes on or after it ended."""

from __future__ import annotations

from typing import Any

import ray.train

from fusionray.ray_cluster.progress import ProgressHandle


class FailureReporter(ray.train.UserCallback):  # type: ignore[misc, unused-ignore]
    """Tell the user of each failure of a worker as it happens: Ray Train restarts the workers without a word."""

    def __init__(self, board: ProgressHandle, run_name: str) -> None:
        self.board = board
        self.run_name = run_name

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Name the failure of the first rank that has one."""
        del run_context
        rank, error = min(worker_exceptions.items())
        self.board.log(f"train {self.run_name}: worker {rank} failed ({root_cause(error)})")


def root_cause(error: Exception) -> str:
    """Find the line that says what went wrong in a worker."""
    failures = getattr(error, "worker_failures", None)
    cause: BaseException = next(iter(failures.values())) if failures else error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    # Of a process that died Ray tells the exit type, and everything that ever caused such an exit.
    said = lines[-1].split(" Worker exit type:")[0] if lines else "no message"
    return f"{type(cause).__name__}: {said}"
