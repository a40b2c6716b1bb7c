"""Every strategy of two real processes trains the same model, and shards what it promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.training.engine.parallel.two_ranks import NUM_RANKS
from tests.training.engine.parallel.two_ranks_by_strategy import train_by_strategy
from tests.training.engine.process_group import run_group

# The fixture takes all of it.
pytestmark = pytest.mark.slow(seconds=3)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_group(train_by_strategy, NUM_RANKS, tmp_path_factory.mktemp("ranks"))


# Exact strategies add the same numbers in another order; compressed ones round them on the way.
TOLERANCES = {
    "overlapped": 1e-4,
    "zero": 1e-5,
    "zero_overlapped": 1e-4,
    "fsdp": 1e-4,
    "fp16": 5e-3,
    "bf16": 2e-2,
    "powersgd": 2e-2,
    "fsdp_bf16": 2e-2,
}


@pytest.mark.parametrize("name", TOLERANCES)
def test_every_strategy_trains_the_same_model_to_the_same_loss(ranks: list[dict[str, Any]], name: str) -> None:
    wanted = ranks[0]["strategies"]["ddp"]
    found = [rank["strategies"][name] for rank in ranks]
    assert found[0]["losses"] == found[1]["losses"]
    for step, losses in enumerate(wanted["losses"]):
        assert found[0]["losses"][step] == pytest.approx(losses, rel=TOLERANCES[name], abs=1e-5), step
    torch.testing.assert_close(found[0]["generator"], found[1]["generator"], rtol=0, atol=0)


def test_sgd_steps_parameters_that_are_sharded(ranks: list[dict[str, Any]]) -> None:
    whole, sharded = (ranks[0]["sgd"][name] for name in ("ddp", "fsdp"))
    for step, losses in enumerate(whole["losses"]):
        assert sharded["losses"][step] == pytest.approx(losses, rel=TOLERANCES["fsdp"], abs=1e-5), step


def test_matrices_are_stepped_alike_by_the_rank_that_keeps_their_momentum(ranks: list[dict[str, Any]]) -> None:
    whole, divided = ([rank["muon"][name] for rank in ranks] for name in ("ddp", "zero"))
    assert divided[0]["losses"] == divided[1]["losses"]
    for step, losses in enumerate(whole[0]["losses"]):
        assert divided[0]["losses"][step] == pytest.approx(losses, rel=1e-4, abs=1e-5), step
    assert whole[0]["held"] < ranks[0]["strategies"]["ddp"]["held"]  # one momentum, not two moments
    assert sum(rank["held"] for rank in divided) == whole[0]["held"]


@pytest.mark.parametrize(
    ("name", "exact", "step"),
    [
        ("fp16", "ddp", 0),
        ("bf16", "ddp", 0),
        ("fsdp_bf16", "fsdp", 0),
        # PowerSGD compresses from the fourth exchange of a network on.
        ("powersgd", "ddp", 3),
    ],
)
def test_compression_rounds_what_is_exchanged(ranks: list[dict[str, Any]], name: str, exact: str, step: int) -> None:
    found, wanted = (ranks[0]["strategies"][strategy]["norms"][step]["generator"] for strategy in (name, exact))
    assert found != wanted
    assert found == pytest.approx(wanted, rel=TOLERANCES[name])


def test_the_compression_error_of_a_nonfinite_step_is_dropped(ranks: list[dict[str, Any]]) -> None:
    before, after = ranks[0]["strategies"]["powersgd"]["errors"]
    assert before > 0
    assert after == 0


def test_strategies_shard_what_they_promise_and_no_more(ranks: list[dict[str, Any]]) -> None:
    def held(name: str) -> list[int]:
        return [rank["strategies"][name]["held"] for rank in ranks]

    whole = held("ddp")
    assert whole[0] == whole[1]
    assert sum(held("zero")) == whole[0]
    assert sum(held("fsdp")) == pytest.approx(whole[0], rel=0.02)  # step counts are kept by both
    assert ranks[0]["strategies"]["ddp"]["kinds"] == {"generator": "FlatAllReduce", "discriminator": "FlatAllReduce"}
    assert ranks[0]["strategies"]["overlapped"]["kinds"] == {"generator": "DDP", "discriminator": "DDP"}
    # A gradient penalty differentiates a gradient: its network stays whole.
    assert ranks[0]["strategies"]["fsdp"]["kinds"] == {"generator": "FSDP", "discriminator": "FlatAllReduce"}


@pytest.mark.parametrize(
    ("name", "moments"), [("ddp", "after"), ("overlapped", "during"), ("fsdp", "during and after")]
)
def test_the_description_says_when_gradients_are_exchanged(
    ranks: list[dict[str, Any]], name: str, moments: str
) -> None:
    assert f"gradients exchanged {moments} the backward pass" in ranks[0]["strategies"][name]["described"]
