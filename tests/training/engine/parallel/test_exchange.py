"""Two ranks exchange compressed gradients and orthogonal steps, over non-finite steps as well."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fusionray.training.engine.optimizers.muon import cost, divide
from tests.training.engine.parallel.exchange_ranks import GRADIENTS, NUM_RANKS, exchange, step_matrices
from tests.training.engine.process_group import run_group


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_group(exchange, NUM_RANKS, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_any_size_keep_their_digits_in_fp16(ranks: list[dict[str, Any]], name: str) -> None:
    for rank in ranks:
        assert rank["averages"][name] == pytest.approx([1.5 * GRADIENTS[name], 0.75 * GRADIENTS[name]], rel=1e-3)


def test_the_small_among_large_gradients_keep_their_digits_in_fp16(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["spread"] == pytest.approx([1.5, 1.5e-6], rel=1e-3)


def test_overlapped_gradients_keep_their_digits_in_fp16(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert max(rank["overlapped"].values()) < 1e-6
        assert rank["overlapped_fp16"] == pytest.approx(rank["overlapped"], rel=1e-3, abs=0)


@pytest.mark.parametrize("lag", [0, 1])
def test_powersgd_goes_on_after_a_step_that_is_not_finite(ranks: list[dict[str, Any]], lag: int) -> None:
    for rank in ranks:
        skipped = rank["powersgd"][lag]["skipped"]
        # A host that learns of it a step later loses that step, too.
        assert skipped == [6 <= step <= 6 + lag for step in range(12)]
        assert all(value.isfinite().all() for value in rank["powersgd"][lag]["parameters"].values())
    first, second = (rank["powersgd"][lag]["parameters"] for rank in ranks)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_divided_orthogonal_steps_are_those_of_one_rank(ranks: list[dict[str, Any]]) -> None:
    alone = step_matrices(None)
    torch.testing.assert_close(ranks[0]["muon"], alone, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ranks[0]["muon"], ranks[1]["muon"], rtol=0, atol=0)


def test_ranks_leave_out_the_same_divided_step(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["bad_muon"] for rank in ranks)
    assert first["skipped"] == second["skipped"] == [False, True, False]
    torch.testing.assert_close(first["parameters"], second["parameters"], rtol=0, atol=0)


def test_matrices_are_divided_by_what_they_cost() -> None:
    shapes = [(64, 64), (32, 288), (64, 576), (48, 432), (8, 16), (96, 96)]
    matrices = [nn.Parameter(torch.empty(shape)) for shape in shapes]
    for num_parts in (1, 2, 3, 8):
        parts = divide(matrices, num_parts)
        assert sorted(id(matrix) for part in parts for matrix in part) == sorted(map(id, matrices))
        costs = [sum(map(cost, part)) for part in parts]
        # No part is more expensive than the cheapest one by more than one matrix.
        assert max(costs) - min(costs) <= max(map(cost, matrices))
    assert max(map(cost, matrices)) / sum(map(cost, matrices)) < 0.5
    assert max(sum(map(cost, part)) for part in divide(matrices, 2)) < 0.6 * sum(map(cost, matrices))


def test_networks_are_compiled_in_the_pieces_of_the_exchange(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        # As one graph of three layers, all gradients would be there at the end of the backward pass only.
        assert max(rank["graphs"]) == 2


def test_optimiser_states_exist_before_the_dry_pass_and_count_no_step(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["adam_steps"] == {"before": [0.0] * 4, "after": [2.0] * 4}
