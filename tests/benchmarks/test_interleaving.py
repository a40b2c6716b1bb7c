from __future__ import annotations

import time

import pytest
import torch

from fusionray.benchmarks.interleaving import Pace, divide, interleave

CPU = torch.device("cpu")


def test_candidates_alternate_in_both_orders() -> None:
    called: list[str] = []
    ticks: list[int] = []
    seconds = interleave(
        {"a": lambda: called.append("a"), "b": lambda: called.append("b")},
        Pace(rounds=2, steps=2),
        device=CPU,
        warm_up=1,
        tick=lambda: ticks.append(1),
    )
    assert "".join(called) == "ab" + "aabb" + "bbaa"
    assert [len(values) for values in seconds.values()] == [2, 2]
    assert len(ticks) == 2


def test_only_the_first_round_starts_after_the_limit() -> None:
    pace = Pace(rounds=5, steps=1, until=time.monotonic() - 1)
    assert len(interleave({"a": lambda: None}, pace, device=CPU)["a"]) == 1


def test_only_times_of_one_round_are_compared() -> None:
    # The machine was half as fast in the second round: the ratio does not notice.
    assert divide([1.0, 2.0], [0.5, 1.0]) == [2.0, 2.0]
    with pytest.raises(ValueError, match="longer"):
        divide([1.0], [1.0, 2.0])
