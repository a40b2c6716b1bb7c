"""The batch-size search in two processes: ranks do not wait for each other, and nothing of it is left."""

from __future__ import annotations

from typing import Any

import pytest

from tests.training.engine.batches.search_ranks import LOCAL_BATCH, NUM_RANKS, STRATEGIES, search
from tests.training.engine.process_group import run_group

# Micro-batches of a local batch are added up in bfloat16.
TOLERANCES = {"fsdp_bf16": 2e-2}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_group(search, NUM_RANKS, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_rank_that_runs_out_of_memory_in_the_search_leaves_no_trace(
    ranks: list[dict[str, Any]], strategy: str, where: str
) -> None:
    for rank in ranks:
        found = rank["searches"][f"{strategy}_{where}"]
        assert found["batch_size"] == LOCAL_BATCH // 2
        for searched, plain in found["reports"]:
            assert searched == pytest.approx(plain, rel=TOLERANCES.get(strategy, 1e-4))


def test_ranks_choose_one_strategy_though_their_memory_differs(ranks: list[dict[str, Any]]) -> None:
    assert [rank["strategy"] for rank in ranks] == ["fsdp", "fsdp"]
