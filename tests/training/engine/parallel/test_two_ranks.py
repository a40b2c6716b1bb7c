"""Training in two real processes: gradients, rates and decisions are those of one large batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.toy_recipe import draw_numbers
from tests.training.engine.parallel.two_ranks import NUM_RANKS, NUM_STEPS, build_engine, parameters, train
from tests.training.engine.process_group import run_group


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_group(train, NUM_RANKS, tmp_path_factory.mktemp("ranks"))


def test_two_ranks_with_two_micro_batches_learn_what_one_large_batch_teaches(ranks: list[dict[str, Any]]) -> None:
    alone = build_engine()
    losses = [alone.step(draw_numbers(16, seed=step)).losses["first"] for step in range(NUM_STEPS)]
    for rank in ranks:
        torch.testing.assert_close(rank["toy"]["parameters"], parameters(alone), rtol=1e-5, atol=1e-6)
        # The logged loss is that of all ranks, too.
        assert rank["toy"]["losses"] == pytest.approx(losses, rel=1e-5)


def test_shares_that_differ_by_a_row_teach_what_one_large_batch_teaches(ranks: list[dict[str, Any]]) -> None:
    alone = build_engine(global_batch=7)
    losses = [alone.step(draw_numbers(7, seed=step)).losses["first"] for step in range(NUM_STEPS)]
    for rank in ranks:
        torch.testing.assert_close(rank["uneven"]["parameters"], parameters(alone), rtol=1e-5, atol=1e-6)
        assert rank["uneven"]["losses"] == pytest.approx(losses, rel=1e-5)


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


def test_dry_passes_leave_no_trace_in_running_statistics(ranks: list[dict[str, Any]]) -> None:
    # Rank 0's are those that count.
    after, during = (ranks[0][name]["parameters"] for name in ("identity", "identity_overlapped"))
    counts = [name for name in after if name.endswith("num_batches_tracked")]
    assert counts
    assert [int(during[name]) for name in counts] == [int(after[name]) for name in counts]


def test_ranks_that_meet_over_gloo_agree_in_the_group_they_have(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["agrees_in_the_default_group"] for rank in ranks)


def test_finding_the_batch_anew_leaves_sharded_optimisers_as_they_are(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        before, after = rank["found_again"]["before"], rank["found_again"]["after"]
        assert any(name.startswith("optimizers.first.") for name in before)
        torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_ranks_agree_on_the_batch_that_fits_into_the_smaller_memory(ranks: list[dict[str, Any]]) -> None:
    assert [rank["auto"]["unchanged"] for rank in ranks] == [True, True]
    sizes = [rank["auto"]["batch_size"] for rank in ranks]
    assert sizes[0] == sizes[1]
    # Five times 8 MiB a row within 400 MiB, of which the first step's own buffers take some.
    assert 5 <= sizes[0] <= 10


def test_a_norm_that_overflows_lowers_the_loss_scale_of_sharded_optimisers(ranks: list[dict[str, Any]]) -> None:
    assert [rank["overflown"] for rank in ranks] == [[4096.0, 2048.0]] * 2


@pytest.mark.parametrize("moment", ["after", "during"])
def test_memory_that_runs_out_on_one_rank_halves_its_batch_without_a_lost_step(
    ranks: list[dict[str, Any]], moment: str
) -> None:
    note = "out of memory in 'fit_second' with 8 images at once: continuing with 4; the global batch is unchanged"
    assert [rank["exhausted"][moment]["batch_size"] for rank in ranks] == [8, 4]
    assert [rank["exhausted"][moment]["notes"] for rank in ranks] == [[], [note]]
    for rank in ranks:
        found = rank["exhausted"][moment]
        for wanted, losses in found["reports"]:
            assert losses == pytest.approx(wanted, rel=1e-5)
        torch.testing.assert_close(found["found"], found["wanted"], rtol=1e-5, atol=1e-6)
