from __future__ import annotations

import pytest
from pydantic import ValidationError

from fusionray.evaluation.metric_table import Goal, MetricTable, load_table
from fusionray.evaluation.report.missing_metrics import AvailableInputs, explain_missing_metrics
from fusionray.metrics.confidence import Interval
from fusionray.reporting.figures import MeasuredFigure

EVERYTHING = AvailableInputs(synthetic=True, with_reader=True, with_features=False, landmarks_error="", num_clips=1)


@pytest.mark.parametrize(
    ("goal", "value", "text", "holds"),
    [
        (Goal(at_least=0.95), 0.95, ">= 0.95", True),
        (Goal(at_least=0.95), 0.949, ">= 0.95", False),
        (Goal(at_most=1.4), 1.41, "<= 1.4", False),
        (Goal(at_least=0.9, at_most=1.1), 1.1, "0.9 .. 1.1", True),
        (Goal(at_least=0.9, at_most=1.1), 0.89, "0.9 .. 1.1", False),
        (Goal(above=("low", "high")), 0.6, "> low (0.100), high (0.500)", True),
        (Goal(above=("low", "high")), 0.5, "> low (0.100), high (0.500)", False),
    ],
)
def test_a_goal_compares_the_value_and_keeps_its_interval(goal: Goal, value: float, text: str, holds: bool) -> None:
    figure = goal.check(MeasuredFigure(value=value, unit="x", low=0.0, high=2.0), {"low": 0.1, "high": 0.5})
    assert (figure.goal, figure.holds) == (text, holds)
    assert (figure.value, figure.low, figure.high) == (value, 0.0, 2.0)


@pytest.mark.parametrize("wrong", [{}, {"at_least": 1, "above": ["x"]}])
def test_a_goal_is_either_bounds_or_a_comparison(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="either bounds"):
        Goal.model_validate(wrong)


def test_the_table_checks_measured_values_in_its_own_order() -> None:
    table = load_table()
    values = {"fairness_gap": 0.06, "retrieval_vs_truth": 0.9, "fid": 3.0}
    paired, unpaired, none = (
        table.check_goals(values, {"fid": Interval(1, 4)}, chosen) for chosen in ("paired", "unpaired", "none")
    )
    assert list(paired) == ["retrieval_vs_truth", "fid", "fairness_gap"]
    assert [figure.holds for figure in paired.values()] == [False, None, False]
    assert [figure.holds for figure in unpaired.values()] == [True, None, True]
    assert [figure.holds for figure in none.values()] == [None] * 3
    assert (paired["fid"].low, paired["fid"].high) == (1, 4)


def test_a_table_whose_names_do_not_fit_is_refused() -> None:
    metric = {"theme": "a", "unit": "x", "description": "w"}
    for wrong in ({"theme": "b"}, {"paired": {"above": ["nothing"]}}):
        with pytest.raises(ValidationError, match=r"there is no theme|which is not a metric"):
            MetricTable.model_validate({"themes": {"a": "?"}, "metrics": {"k": {**metric, **wrong}}})


@pytest.mark.parametrize(
    ("key", "changes", "reason"),
    [
        ("ssim_to_truth", {"synthetic": False}, "photographs"),
        ("pose_error", {"with_reader": False}, "attributes=null"),
        ("fid", {}, "measured in the evaluator's embeddings"),
        ("fid_embedding", {"with_features": True}, "in the features of the given network"),
        ("landmark_distance", {"landmarks_error": "no model files"}, "no model files"),
        ("landmark_acceleration", {"landmarks_error": "no model files"}, "no model files"),
        ("flicker", {"num_clips": 0}, "there are no clips"),
        ("flicker_truth", {}, "recorded clips"),
        ("fairness_gap", {}, "two groups"),
        ("verification_auc", {}, "no person has two pictures"),
    ],
)
def test_missing_metrics_are_explained(key: str, changes: dict[str, object], reason: str) -> None:
    table = load_table()
    found = explain_missing_metrics(
        table, set(table.metrics) - {key}, AvailableInputs(**{**vars(EVERYTHING), **changes})
    )
    assert found.keys() == {key}
    assert reason in found[key]
