"""Steps with gradients that were not finite: they are left out, counted, and too many in a row end the training."""

from __future__ import annotations

from collections import deque

from fusionray.errors import TrainingFailed
from fusionray.training.engine.step_report import StepReport


class NonfiniteSteps:
    """Judge the reports of steps; to read one waits for the device, so the newest may be left for later."""

    def __init__(self, most_in_a_row: int) -> None:
        self.most_in_a_row = most_in_a_row
        self.in_a_row = 0
        self.total = 0
        self.unread: deque[StepReport] = deque()

    def add(self, report: StepReport) -> None:
        """Take a report that is to be judged."""
        self.unread.append(report)

    def settle(self, images_seen: int, *, lag: int = 0) -> bool:
        """Judge all but the newest `lag` reports; returns whether a bad one was among them.

        Gradients are equal on all ranks, so all ranks count alike.

        Raises: TrainingFailed after more bad steps in a row than allowed.
        """
        before = self.total
        while len(self.unread) > lag:
            skipped = self.unread.popleft().skipped
            self.in_a_row = self.in_a_row + 1 if skipped else 0
            self.total += bool(skipped)
            if self.in_a_row > self.most_in_a_row:
                raise TrainingFailed(
                    f"{self.in_a_row} steps in a row had non-finite gradients (last: {', '.join(skipped)}) after "
                    f"{images_seen} images; lower base_lr, use engine.precision=fp32, or look for damaged data"
                )
        return self.total > before
