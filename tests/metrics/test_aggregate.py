from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fusionray.metrics.aggregate import score_pairs, summarise
from fusionray.metrics.retrieval import Templates

PEOPLE = np.array(["a", "b", "c"])
TEMPLATES = Templates(np.eye(3, 4, dtype=np.float32), PEOPLE)


def unit(rows: list[list[float]]) -> NDArray[np.float32]:
    values = np.array(rows, np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def test_identity_is_scored_by_templates_source_and_target() -> None:
    scores = score_pairs(
        {
            "embedding_fused": unit([[1, 0, 0, 0], [0.6, 0.5, 0, 0], [0, 0, 1, 1]]),
            "embedding_source": unit([[1, 0, 0, 0.5], [0, 1, 0, 0], [0, 0, 1, 0]]),
            "embedding_target": unit([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]]),
        },
        TEMPLATES,
        PEOPLE,
    )
    assert scores["retrieval_top1"].tolist() == [1, 0, 1]
    assert scores["nearer_to_source"].tolist() == [1, 0, 0]  # as near to the target is not nearer to the source
    assert scores["cosine_to_source"] == pytest.approx([1 / 1.25**0.5, 0.5 / 0.61**0.5, 0.5**0.5])
    assert "retrieval_truth" not in scores


def test_ratios_are_of_means_and_not_means_of_ratios() -> None:
    scores = {
        "gradient_energy": np.array([1, 9], np.float32),
        "gradient_energy_truth": np.array([2, 8], np.float32),
        "ssim_to_truth": np.array([0.8, 0.6], np.float32),
        "ssim_target": np.array([0.4, 0.4], np.float32),
        "retrieval_top1": np.array([1, 0], np.float32),
        "retrieval_truth": np.array([0, 0], np.float32),
    }
    values = summarise(scores, np.array(["a", "b"])).values
    assert values["sharpness_ratio"] == pytest.approx(1.0)
    assert values["ssim_gap_closed"] == pytest.approx(0.5)
    assert "retrieval_vs_truth" not in values  # a division by zero is no figure
    assert not {"gradient_energy", "gradient_energy_truth"} & values.keys()


def test_a_pair_without_a_score_does_not_count() -> None:
    scores = {"landmark_distance": np.array([0.1, np.nan, 0.3], np.float32)}
    assert summarise(scores, PEOPLE).values == {"landmark_distance": pytest.approx(0.2)}
    assert summarise({"landmark_distance": np.full(3, np.nan, np.float32)}, PEOPLE).values == {}


def test_a_ratio_is_of_the_pairs_that_have_both_scores() -> None:
    scores = {
        "skin_step_source": np.array([3, np.nan, 5], np.float32),
        "skin_step_fused_target": np.array([2, 9, 2], np.float32),
    }
    assert summarise(scores, PEOPLE).values == {"skin_difference_source": pytest.approx(2.0)}
    nothing = {name: np.full(3, np.nan, np.float32) for name in scores}
    assert summarise(nothing, PEOPLE).values == {}


def test_the_fairness_gap_is_between_groups_of_source_people() -> None:
    tone = np.repeat(np.array([0.1, 0.5, 0.9], np.float32), 20)
    found = np.repeat(np.array([0, 1, 1], np.float32), 20)
    found[:5] = 1
    scores = {"retrieval_top1": found, "skin_tone": tone, "age": np.zeros(60, np.float32)}
    summary = summarise(scores, np.arange(60).astype(str))
    assert summary.values["fairness_gap"] == pytest.approx(0.75)
    assert summary.groups["fairness_gap"].worst == "dark"
    assert "fairness_gap_age" not in summary.values  # everybody is young: there is nothing to compare


def test_steps_of_skin_are_compared_with_those_of_true_fusions_for_all_pairs_and_by_tones() -> None:
    # Two steps for one in the fused pictures, three for two in the true fusions, of light people on dark ones.
    steps = {"fused": 4.0, "fused_target": 2.0, "truth": 3.0, "truth_target": 2.0}
    scores = {
        f"{kind}_step_{name}": np.full(20, value, np.float32)
        for kind in ("skin", "edge")
        for name, value in steps.items()
    } | {"tone_source": np.full(20, 60, np.float32), "tone_target": np.full(20, -30, np.float32)}
    summary = summarise(scores, np.arange(20).astype(str))
    wanted = {"skin_difference": 2.0, "skin_difference_truth": 1.5, "seam_step": 2.0, "seam_step_truth": 1.5}
    assert summary.values == pytest.approx(wanted)
    assert {key: summary.groups[key].by_group["light on dark"] for key in wanted} == pytest.approx(wanted)


def test_pairs_of_one_person_are_not_independent() -> None:
    # Twenty pairs of each of ten people, who succeed or fail together.
    person = np.repeat(np.arange(10).astype(str), 20)
    scores = {"retrieval_top1": np.repeat(np.arange(10) % 2, 20).astype(np.float32)}
    low, high = summarise(scores, person, rounds=200).intervals["retrieval_top1"]
    alone_low, alone_high = summarise(scores, np.arange(200).astype(str), rounds=200).intervals["retrieval_top1"]
    assert high - low > 3 * (alone_high - alone_low)
