"""Steps with non-finite gradients: they are skipped and counted, and too many in a row end the training."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from fusionray.errors import TrainingFailed
from fusionray.training.engine.step_report import StepReport


class NonfiniteSteps:
    """Count non-finite steps. Reading a report waits for the device, so the newest reports may be read later."""

    def __init__(self, most_in_a_row: int) -> None:
        self.most_in_a_row = most_in_a_row
        self.in_a_row = 0
        self.total = 0
        self.unread: deque[StepReport] = deque()

    def add(self, report: StepReport) -> None:
        """Add the report of a step."""
        self.unread.append(report)

    def settle(self, images_seen: int, *, lag: int = 0) -> bool:
        """Read all but the newest `lag` reports; return whether a non-finite step is among them.

        Gradients are equal on all ranks, so all ranks count the same.

        Raises: TrainingFailed after more non-finite steps in a row than allowed.
        """
        before = self.total
        while len(self.unread) > lag:
            skipped = self.unread.popleft().skipped
            self.in_a_row = self.in_a_row + 1 if skipped else 0
            self.total += bool(skipped)
            if self.in_a_row > self.most_in_a_row:
                raise TrainingFailed(
                    f"{self.in_a_row} steps in a row had non-finite gradients (last: {', '.join(skipped)}) after "
                    f"{images_seen} images; lower base_lr, set engine.precision=fp32, or check the data for damage"
                )
        return self.total > before


def keep_if(bad: Tensor, before: Sequence[Tensor], after: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of the tensors `before` where the scalar `bad` is not 0, else of those `after`, of the same shapes.

    All have one dtype. On a GPU the host does not wait to know `bad`, and few kernels do it, however many tensors.
    """
    flat_before, flat_after = (torch.cat([tensor.flatten() for tensor in tensors]) for tensors in (before, after))
    kept = torch.where(bad.bool(), flat_before, flat_after)
    parts = torch.split(kept, [tensor.numel() for tensor in after])
    return [part.view(tensor.shape) for part, tensor in zip(parts, after, strict=True)]
