"""Hard cases of an evaluation: who they are, and that their figures stand beside those of all pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fusionray.data import synthetic
from fusionray.metrics.aggregate import mean, score_pairs, summarise
from fusionray.metrics.hard_cases import ALL, compare_cases, find_extreme_cases, find_rendered_cases
from fusionray.metrics.retrieval import Templates
from fusionray.types import SyntheticTruth


def draw_truth(count: int, **changes: float) -> SyntheticTruth:
    """Neutral people in neutral pictures, with some parameters of all of them changed."""
    people, looks = torch.zeros(count, len(synthetic.IDENTITY_NAMES)), synthetic.neutral_attributes(count)
    for name, value in changes.items():
        known, values = (
            (synthetic.IDENTITY_NAMES, people)
            if name in synthetic.IDENTITY_NAMES
            else (synthetic.ATTRIBUTE_NAMES, looks)
        )
        values[:, known.index(name)] = value
    return SyntheticTruth(people, people, looks, torch.zeros(count, 2, 3))


@pytest.mark.parametrize(
    ("changes", "case"),
    [
        ({"yaw": -35}, "target_turned_30_degrees"),
        ({"eye_closure": 0.9}, "target_eyes_closed"),
        ({"mouth_open": 0.8}, "target_mouth_open"),
        ({"glasses": 2}, "target_with_glasses"),
        ({"beard": 0.7}, "source_with_beard"),
        ({"moustache": 0.7}, "source_with_beard"),
    ],
)
def test_a_rendered_case_is_known_by_its_parameter(changes: dict[str, float], case: str) -> None:
    found = find_rendered_cases(draw_truth(3, **changes))
    assert [name for name, values in found.items() if values.any()] == [f"case_{case}"]
    assert found[f"case_{case}"].tolist() == [1, 1, 1]


def test_a_neutral_picture_is_no_case() -> None:
    assert not any(values.any() for values in find_rendered_cases(draw_truth(3)).values())


def test_the_most_alike_the_darkest_and_the_softest_fifth_are_cases() -> None:
    rising = np.arange(20, dtype=np.float32)
    found = find_extreme_cases(rising, rising, rising)
    assert np.flatnonzero(found["case_people_alike"]).tolist() == [16, 17, 18, 19]
    assert np.flatnonzero(found["case_target_dark"]).tolist() == [0, 1, 2, 3]
    assert np.flatnonzero(found["case_target_soft"]).tolist() == [0, 1, 2, 3]


def test_each_case_stands_beside_all_pairs_and_small_ones_are_left_out() -> None:
    scores = {
        "hit": np.array([1] * 30 + [0] * 10, np.float32),
        "case_with_hat": np.array([0] * 20 + [1] * 20, np.float32),
        "case_rare": np.array([1] * 3 + [0] * 37, np.float32),
    }
    groups = compare_cases(scores, mean, ("hit",))
    assert groups.by_group == pytest.approx({ALL: 0.75, "with hat": 0.5})
    assert groups.num_rows == {ALL: 40, "with hat": 20, "rare": 3}
    assert (groups.worst, groups.left_out) == ("with hat", ("rare",))


def test_cases_of_pairs_reach_the_summary_and_are_no_figures_themselves() -> None:
    count = 50
    random = np.random.default_rng(0)
    source, target = (random.normal(size=(count, 4)).astype(np.float32) for _ in range(2))
    columns = {
        "embedding_fused": source,
        "embedding_source": source,
        "embedding_target": target,
        "light_target": random.uniform(size=count).astype(np.float32),
        "detail_target": random.uniform(size=count).astype(np.float32),
        "case_target_with_glasses": np.arange(count) % 2 == 0,
    }
    people = np.arange(count).astype(str)
    scores = score_pairs(columns, Templates(source, people), people)
    summary = summarise(scores, people)
    assert set(summary.groups["retrieval_top1"].by_group) == {
        *(ALL, "people alike", "target dark", "target soft", "target with glasses")
    }
    assert not [key for key in summary.values if key.startswith("case_")]
