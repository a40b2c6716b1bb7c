"""Report the failure of a training worker in one line: at once, while Ray Train restarts the group, or at the end."""

from __future__ import annotations

from typing import Any

import ray.train

from fusionray.ray_cluster.progress import ProgressHandle


class FailureReporter(ray.train.UserCallback):  # type: ignore[misc, unused-ignore]
    """Ray Train callback that prints a line for each failure of a worker, because Ray Train restarts workers silently.

    The line goes through the progress actor, so that it does not break the progress bar.
    """

    def __init__(self, progress: ProgressHandle, run_name: str) -> None:
        self.progress = progress
        self.run_name = run_name

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Log the failure of the lowest rank among `worker_exceptions`, which must not be empty."""
        del run_context
        rank, error = min(worker_exceptions.items())
        self.progress.log(f"train {self.run_name}: worker {rank} failed ({root_cause(error)})")


def root_cause(error: Exception) -> str:
    """Return `ErrorType: message` of the exception that caused a failure, in one line.

    Of a Ray Train error that lists failures by rank, the first rank in the list counts. The chain of `__cause__` is
    followed to its end; the message is the last line of that exception that is not blank, or `no message`.
    """
    failures = getattr(error, "worker_failures", None)
    cause: BaseException = next(iter(failures.values())) if failures else error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    # For a process that died, Ray appends its exit type and a long list of possible causes; both are cut off.
    said = lines[-1].split(" Worker exit type:")[0] if lines else "no message"
    return f"{type(cause).__name__}: {said}"
