from __future__ import annotations

import pytest

from fusionray.data.pairs import crops_from_tables
from fusionray.recipes.attributes import AttributesRecipeConfig
from fusionray.recipes.face_fusion_config import FaceFusionConfig
from fusionray.recipes.identity import IdentityRecipeConfig
from fusionray.training.run.progress_logger import crossed
from fusionray.training.run.validation import tell_missing
from tests.support.tiny_shards import build_crops, build_table


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
    crops = crops_from_tables([build_table(build_crops(people, pictures))])
    assert tell_missing(FaceFusionConfig(), crops) == for_fusion
    assert tell_missing(IdentityRecipeConfig(), crops) == for_verification
    assert tell_missing(AttributesRecipeConfig(), crops) == ""


@pytest.mark.parametrize(("before", "after", "due"), [(0, 9, False), (9, 10, True), (10, 19, False), (8, 32, True)])
def test_a_report_is_due_when_a_multiple_of_its_interval_is_reached(before: int, after: int, due: bool) -> None:
    assert crossed(before, after, 10) == due
