from __future__ import annotations

import torch
from torch import nn

from fusionray.training.engine.running_statistics import RunningStatistics, copy_statistics


def build_batch_norm(num_rows: int) -> nn.BatchNorm1d:
    """Build a batch norm that has seen `num_rows` rows."""
    norm = nn.BatchNorm1d(2)
    norm(torch.arange(2.0 * num_rows).reshape(num_rows, 2))
    return norm


def test_restore_returns_to_the_last_snapshot() -> None:
    norm = build_batch_norm(3)
    statistics = RunningStatistics([nn.Linear(2, 2), norm])
    norm(torch.randn(5, 2))
    statistics.snapshot()
    wanted = {name: value.clone() for name, value in norm.named_buffers()}
    norm(torch.randn(5, 2))
    assert not torch.equal(norm.running_mean, wanted["running_mean"])
    statistics.restore()
    torch.testing.assert_close(dict(norm.named_buffers()), wanted, rtol=0, atol=0)


def test_restore_does_nothing_where_the_condition_is_false() -> None:
    norm = build_batch_norm(3)
    statistics = RunningStatistics([norm])
    kept = norm.running_mean.clone()
    norm(torch.randn(5, 2))
    new = norm.running_mean.clone()
    statistics.restore(condition=torch.tensor(False))
    assert torch.equal(norm.running_mean, new)
    statistics.restore(condition=torch.tensor(True))
    assert torch.equal(norm.running_mean, kept)


def test_networks_without_buffers_are_accepted() -> None:
    statistics = RunningStatistics([nn.Linear(2, 2)])
    statistics.snapshot()
    statistics.restore()
    assert statistics.buffers == []


def test_statistics_are_copied_into_another_network() -> None:
    seen, fresh = build_batch_norm(9), nn.BatchNorm1d(2)
    copy_statistics(seen, to=fresh)
    torch.testing.assert_close(dict(fresh.named_buffers()), dict(seen.named_buffers()), rtol=0, atol=0)
    assert fresh.running_mean is not seen.running_mean
