"""Training in two real processes: gradients, rates and decisions are those of one large batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.toy_recipe import draw_numbers
from tests.training.two_ranks import NUM_STEPS, build_engine, parameters, spawn


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return spawn(tmp_path_factory.mktemp("ranks"))


def test_two_ranks_with_two_micro_batches_learn_what_one_large_batch_teaches(ranks: list[dict[str, Any]]) -> None:
    alone = build_engine(accumulate=1)
    losses = [alone.step([draw_numbers(16, seed=step)]).losses["first"] for step in range(NUM_STEPS)]
    for rank in ranks:
        torch.testing.assert_close(rank["toy"]["parameters"], parameters(alone), rtol=1e-5, atol=1e-6)
        # The logged loss is that of all ranks, too.
        assert rank["toy"]["losses"] == pytest.approx(losses, rel=1e-5)


def test_the_learning_rate_does_not_depend_on_a_rank_s_own_loss(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["toy"]["rates"] == ranks[1]["toy"]["rates"]
    # 16 images a step in a warm-up of 32 from a tenth of 0.1 x 16 / 32.
    assert ranks[0]["toy"]["rates"] == pytest.approx([0.005, 0.0275, 0.05])


def test_a_bad_row_on_one_rank_makes_both_leave_the_step_out(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        bad = rank["bad"]
        assert bad["skipped"] == ["fit_first"]
        for name, value in bad["before"].items():
            assert torch.equal(bad["after"][name], value) == name.startswith("first."), name
    torch.testing.assert_close(ranks[0]["bad"]["after"], ranks[1]["bad"]["after"], rtol=0, atol=0)


def test_each_network_of_the_fusion_recipe_has_a_wrapper_of_its_own(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["fusion"]["wrappers"] == {"generator": True, "discriminator": True}


def test_ranks_of_the_fusion_recipe_stay_equal_and_learn(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["fusion"] for rank in ranks)
    torch.testing.assert_close(first["parameters"], second["parameters"], rtol=0, atol=0)
    torch.testing.assert_close(first["averages"], second["averages"], rtol=0, atol=0)
    assert first["reports"] == second["reports"]
    assert set(first["reports"][0]["norms"]) == {"generator", "discriminator", "gradient_penalty"}
    for name, value in first["before"].items():
        assert not torch.equal(value, first["parameters"][name]), name


def test_ranks_of_the_identity_recipe_stay_equal_and_learn(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["identity"] for rank in ranks)
    assert first["losses"] == second["losses"]
    assert {"classification", "traits"} <= first["losses"].keys()
    for state in ("averages", "parameters"):
        # The statistics of a batch norm are each rank's own until the next forward takes over those of rank 0.
        for name, value in first[state].items():
            assert "running_" in name or torch.equal(value, second[state][name]), name
    learned = ("head", "traits", "encoder")
    for part in learned:
        names = [name for name in first["before"] if name.startswith(f"classifier.{part}")]
        assert any(not torch.equal(first["before"][name], first["parameters"][name]) for name in names), part
