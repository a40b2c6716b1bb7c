from __future__ import annotations

from itertools import chain

import numpy as np
import pyarrow as pa
import pytest

from fusionray.data.pairs import (
    EncodedCrops,
    SampledPairs,
    crops_from_tables,
    draw_held_out_pairs,
    draw_sources,
    rebatch,
)
from fusionray.data.pairs import (
    draw_pairs as pair_rows,
)
from tests.support.tiny_shards import build_crops, build_table


def draw_pairs(ratio: float, *, seed: int = 0, people: int = 40, pictures: int = 25) -> SampledPairs:
    """Draw every crop of a window once, in random order, with a source."""
    crops = crops_from_tables([build_table(build_crops(people, pictures))])
    random = np.random.default_rng(seed)
    targets = random.permutation(len(crops))
    return SampledPairs(crops, np.stack([draw_sources(crops.person, targets, ratio, random), targets], axis=1))


def people_of(draws: SampledPairs) -> tuple[np.ndarray, np.ndarray]:
    source, target = draws.crops.person[draws.indices].T
    return source, target


@pytest.mark.parametrize("ratio", [0.0, 0.2, 0.5, 1.0])
def test_the_share_of_same_person_pairs_is_the_one_asked_for(ratio: float) -> None:
    # With normal instead of uniform random numbers 0.2 would give 0.58, and 0 would give 0.5.
    source, target = people_of(draw_pairs(ratio, people=400))
    assert np.mean(source == target) == pytest.approx(ratio, abs=0.02)


def test_a_picture_is_never_its_own_source() -> None:
    draws = draw_pairs(1.0, pictures=2)
    source, target = people_of(draws)
    assert (source == target).all()
    assert (draws.indices[:, 0] != draws.indices[:, 1]).all()


def test_all_other_pictures_are_equally_likely_sources() -> None:
    person_N = np.repeat([1, 0, 2], [3, 4, 5])
    targets = np.full(8000, 4)
    sources = draw_sources(person_N, targets, 1.0, np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(sources, minlength=12)[[3, 5, 6]] / 8000, 1 / 3, atol=0.02)
    sources = draw_sources(person_N, targets, 0.0, np.random.default_rng(0))
    shares = np.bincount(sources, minlength=12) / 8000
    np.testing.assert_allclose(shares[[0, 1, 2, 7, 8, 9, 10, 11]], 1 / 8, atol=0.02)
    assert shares[3:7].sum() == 0


def test_people_with_one_picture_are_paired_with_others() -> None:
    source, target = people_of(draw_pairs(1.0, people=60, pictures=1))
    assert len(target) == 60
    assert (source != target).all()


def test_people_with_several_pictures_make_up_for_those_with_one() -> None:
    person_N = np.concatenate([np.arange(1000), np.repeat(np.arange(1000, 1100), 10)])
    targets = np.arange(2000)
    sources = draw_sources(person_N, targets, 0.3, np.random.default_rng(0))
    assert np.mean(person_N[sources] == person_N) == pytest.approx(0.3, abs=0.02)


def test_a_single_person_is_reported() -> None:
    crops = crops_from_tables([build_table(build_crops(1, 20))])
    with pytest.raises(ValueError, match=r"among the 20 rows .* raise data\.shuffle_buffer_rows"):
        draw_sources(crops.person, np.arange(20), 0.5, np.random.default_rng(0))
    draw_sources(crops.person, np.arange(20), 1.0, np.random.default_rng(0))


def test_equal_seeds_give_equal_pairs_and_others_do_not() -> None:
    first = draw_pairs(0.2, seed=1).indices
    assert (first == draw_pairs(0.2, seed=1).indices).all()
    assert (first != draw_pairs(0.2, seed=2).indices).any()


def test_the_source_of_a_pair_varies() -> None:
    assert len(np.unique(draw_pairs(0.2).indices[:, 0])) > 400


def test_held_out_pairs_are_fixed_and_of_different_people() -> None:
    crops = crops_from_tables([build_table(build_crops(6, 4))])
    draws = draw_held_out_pairs(crops, 60, seed=5)
    assert len(draws) == 60
    assert (draws.indices == draw_held_out_pairs(crops, 60, seed=5).indices).all()
    source, target = people_of(draws)
    assert (source != target).all()
    for start in (0, 24):
        assert len(np.unique(draws.indices[start : start + 24, 1])) == 24


def test_held_out_pairs_of_one_person_are_refused() -> None:
    with pytest.raises(ValueError, match="at least two people"):
        draw_held_out_pairs(crops_from_tables([build_table(build_crops(1, 9))]), 4, seed=0)


def test_crops_hold_the_rows_of_all_tables_in_their_order() -> None:
    crops = build_crops(3, 4)
    rows = build_table(crops)
    # Slices and chunks: the rows of a table may begin anywhere in its buffers.
    tables = [rows.slice(0, 5), pa.concat_tables([rows.slice(5, 1), rows.slice(6, 0), rows.slice(6, 3)]), rows.slice(9)]
    taken = crops_from_tables(tables)
    assert len(taken) == 12
    assert [bytes(crop.image) for crop in taken.select(np.arange(12))] == [crop.image for crop in crops]
    assert [crop.identity for crop in taken.select(np.arange(12))] == [crop.identity for crop in crops]
    assert taken.truth == {}


def test_crops_carry_what_generated_them_where_the_rows_do() -> None:
    table = build_table(build_crops(1, 3))
    for name, width in (("identity_parameters", 2), ("attribute_parameters", 3), ("view", 6)):
        values = np.arange(3 * width, dtype=np.float32).reshape(3, width)
        table = table.append_column(name, [values.tolist()])
    crops = crops_from_tables([table.slice(0, 1), table.slice(1)])
    assert crops.truth["identity_parameters"][2].tolist() == [4, 5]
    assert crops.truth["view"][2].tolist() == [12, 13, 14, 15, 16, 17]


def test_all_groups_but_the_last_are_full_whatever_the_sizes_of_the_draws() -> None:
    crops = EncodedCrops([b""] * 100, ["p"], np.zeros(100, np.int64), {})
    parts = [
        SampledPairs(crops, np.arange(start, end)[:, None])
        for start, end in ((0, 2), (2, 3), (3, 20), (20, 20), (20, 31))
    ]
    groups = [[int(index) for draws in group for index in draws.indices[:, 0]] for group in rebatch(parts, 7)]
    assert [len(group) for group in groups] == [7, 7, 7, 7, 3]
    assert list(chain.from_iterable(groups)) == list(range(31))


def build_pictures(styles: int, contents: int) -> EncodedCrops:
    names = [f"styles/{number}.png" for number in range(styles)] + [
        f"c/styles/{number}.png" for number in range(contents)
    ]
    return crops_from_tables([pa.table({"image": [name.encode() for name in names], "source": names})])


def test_sources_come_from_their_folder_and_targets_from_elsewhere() -> None:
    crops = build_pictures(30, 90)
    rows = np.random.default_rng(1).permutation(120)
    drawn = pair_rows(crops, rows, np.random.default_rng(0), source_folder="styles").indices
    assert (drawn[:, 0] < 30).all()
    assert (drawn[:, 1] >= 30).all()
    # Each row is drawn once in the role of its kind.
    np.testing.assert_array_equal(np.where(rows < 30, drawn[:, 0], drawn[:, 1]), rows)
    # Partners are drawn evenly.
    assert len(np.unique(drawn[:, 0])) == 30
    assert len(np.unique(drawn[rows < 30, 1])) > 20
    again = pair_rows(crops, rows, np.random.default_rng(0), source_folder="styles").indices
    np.testing.assert_array_equal(again, drawn)


@pytest.mark.parametrize(("styles", "contents"), [(0, 20), (20, 0)])
def test_pictures_of_one_kind_are_paired_as_any(styles: int, contents: int) -> None:
    crops = build_pictures(styles, contents)
    rows = np.random.default_rng(1).permutation(20)
    drawn = pair_rows(crops, rows, np.random.default_rng(0), source_folder="styles").indices
    np.testing.assert_array_equal(drawn, pair_rows(crops, rows, np.random.default_rng(0)).indices)
    np.testing.assert_array_equal(drawn[:, 1], rows)
    held_out = draw_held_out_pairs(crops, 20, 0, "styles").indices
    np.testing.assert_array_equal(held_out, draw_held_out_pairs(crops, 20, 0).indices)
