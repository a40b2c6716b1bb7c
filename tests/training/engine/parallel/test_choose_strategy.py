from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from fusionray.training.config import ParallelConfig
from fusionray.training.engine.parallel.strategies import choose_strategy

GIB = 2**30


@pytest.mark.parametrize(
    ("parameters", "ranks", "gib", "wanted"),
    [
        (15_000_000, 1, 1, "ddp"),
        (15_000_000, 8, 16, "ddp"),
        (130_000_000, 8, 80, "ddp"),
        (130_000_000, 8, 5, "zero"),
        (130_000_000, 8, 3, "fsdp"),
        (2_000_000_000, 8, 80, "zero"),
        (2_000_000_000, 8, 40, "fsdp"),
    ],
)
def test_auto_takes_the_simplest_strategy_that_leaves_room_for_activations(
    parameters: int, ranks: int, gib: int, wanted: str
) -> None:
    name, reason = choose_strategy(ParallelConfig(), parameters, ranks, gib * GIB)
    assert name == wanted
    assert reason
    if ranks > 1:
        assert f"{gib:.1f} GiB of memory" in reason


def test_a_strategy_that_is_named_is_taken() -> None:
    assert choose_strategy(ParallelConfig(strategy="fsdp"), 10, 2, 80 * GIB) == ("fsdp", "as set")


def test_nothing_is_wrapped_where_no_one_shares() -> None:
    from tests.training.engine.parallel.two_ranks import build_engine

    engine = build_engine(parallel=ParallelConfig(strategy="fsdp", shard_from_parameters=0))
    assert all(wrapped.module is engine.networks[name] for name, wrapped in engine.wrapped.items())
    assert not dist.is_initialized()
    assert engine.inference_networks()["second"] is engine.networks["second"]
    assert isinstance(next(engine.networks["first"].parameters()), torch.nn.Parameter)
