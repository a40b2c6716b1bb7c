from __future__ import annotations

import torch
from torch import nn

from fusionray.training.engine.running_statistics import RunningStatistics, copy_statistics


def build_norm(rows: int) -> nn.BatchNorm1d:
    """Build a norm that has seen this many rows."""
    norm = nn.BatchNorm1d(2)
    norm(torch.arange(2.0 * rows).reshape(rows, 2))
    return norm


def test_statistics_are_taken_back_to_what_was_kept_last() -> None:
    norm = build_norm(3)
    statistics = RunningStatistics([nn.Linear(2, 2), norm])
    norm(torch.randn(5, 2))
    statistics.snapshot()
    wanted = {name: value.clone() for name, value in norm.named_buffers()}
    norm(torch.randn(5, 2))
    assert not torch.equal(norm.running_mean, wanted["running_mean"])
    statistics.restore()
    torch.testing.assert_close(dict(norm.named_buffers()), wanted, rtol=0, atol=0)


def test_they_are_taken_back_only_where_the_device_says_so() -> None:
    norm = build_norm(3)
    statistics = RunningStatistics([norm])
    kept = norm.running_mean.clone()
    norm(torch.randn(5, 2))
    new = norm.running_mean.clone()
    statistics.restore(where=torch.tensor(False))
    assert torch.equal(norm.running_mean, new)
    statistics.restore(where=torch.tensor(True))
    assert torch.equal(norm.running_mean, kept)


def test_networks_without_statistics_have_nothing_to_keep() -> None:
    statistics = RunningStatistics([nn.Linear(2, 2)])
    statistics.snapshot()
    statistics.restore()
    assert statistics.buffers == []


def test_statistics_are_copied_into_another_network() -> None:
    seen, fresh = build_norm(9), nn.BatchNorm1d(2)
    copy_statistics(seen, to=fresh)
    torch.testing.assert_close(dict(fresh.named_buffers()), dict(seen.named_buffers()), rtol=0, atol=0)
    assert fresh.running_mean is not seen.running_mean
