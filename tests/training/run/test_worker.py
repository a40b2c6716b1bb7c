from __future__ import annotations

import pytest

from fusionray.recipes.registry import find_family
from fusionray.training.run.progress_logger import crossed


@pytest.mark.parametrize(
    ("people", "pictures", "for_fusion", "for_verification"),
    [
        (2, 2, "", ""),
        (2, 1, "", "at least two people, one of them twice"),
        (1, 4, "at least two people", "at least two people, one of them twice"),
    ],
)
def test_held_out_pictures_are_compared_only_where_they_can_be(
    people: int, pictures: int, for_fusion: str, for_verification: str
) -> None:
    rows = people * pictures
    assert find_family("face_fusion").describe_shortage(rows, people) == for_fusion
    assert find_family("identity").describe_shortage(rows, people) == for_verification
    assert find_family("attributes").describe_shortage(rows, people) == ""


@pytest.mark.parametrize(("before", "after", "due"), [(0, 9, False), (9, 10, True), (10, 19, False), (8, 32, True)])
def test_a_report_is_due_when_a_multiple_of_its_interval_is_reached(before: int, after: int, due: bool) -> None:
    assert crossed(before, after, 10) == due
