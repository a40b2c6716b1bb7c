from __future__ import annotations

import math

import pytest
import torch

from fusionray.errors import TrainingFailed
from fusionray.training.engine.nonfinite_steps import NonfiniteSteps
from fusionray.training.engine.step_report import StepReport

GOOD, BAD = 1.0, math.nan


def report(norm: float) -> StepReport:
    return StepReport({}, {"generator": torch.tensor(norm)}, {})


def test_nonfinite_steps_are_counted_and_a_good_one_ends_the_row() -> None:
    steps, rows, verdicts = NonfiniteSteps(5), [], []
    for norm in (BAD, math.inf, GOOD, BAD):
        steps.add(report(norm))
        verdicts.append(steps.settle(0))
        rows.append(steps.in_a_row)
    assert rows == [1, 2, 0, 1]
    assert verdicts == [True, True, False, True]
    assert steps.total == 3


def test_the_newest_steps_may_be_checked_for_nonfinite_values_later() -> None:
    steps = NonfiniteSteps(5)
    for _ in range(3):
        steps.add(report(BAD))
    assert steps.settle(0, lag=1)
    assert steps.total == 2
    assert not steps.settle(0, lag=1)
    assert steps.settle(0)
    assert steps.total == 3


def test_one_more_in_a_row_than_allowed_ends_the_training() -> None:
    steps = NonfiniteSteps(2)
    for norm in (BAD, BAD, GOOD, BAD, BAD):
        steps.add(report(norm))
    steps.settle(64)
    steps.add(report(BAD))
    with pytest.raises(TrainingFailed, match=r"3 steps in a row .*\(last: generator\) after 96 images; lower base_lr"):
        steps.settle(96)
