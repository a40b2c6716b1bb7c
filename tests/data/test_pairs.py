from __future__ import annotations

import numpy as np
import pytest

from fusionray.data.pairs import Crop, CropPair, CropPool, crops_from_table, draw_held_out_pairs, pool_crops, pool_pairs
from tests.tiny_shards import build_crops, build_table


def draw_epochs(epochs: int, *, ratio: float, seed: int, capacity: int = 200, people: int = 40) -> list[CropPair]:
    blocks = [build_table(build_crops(people, 25)) for _ in range(epochs)]
    return list(pool_pairs(blocks, CropPool(capacity, seed), ratio))


@pytest.mark.parametrize("ratio", [0.0, 0.2, 0.5, 1.0])
def test_the_share_of_same_person_pairs_is_the_one_asked_for(ratio: float) -> None:
    # A draw from a normal distribution in place of a uniform one would give 0.58 for 0.2, and 0.5 for 0.
    pairs = draw_epochs(10, ratio=ratio, seed=0)
    share = np.mean([pair.same_identity for pair in pairs])
    assert len(pairs) > 9000
    assert share == pytest.approx(ratio, abs=0.02)


def test_a_picture_is_never_its_own_mate_though_epochs_overlap_in_the_pool() -> None:
    # 30 rows and a capacity of 15: what was read in one epoch still lies in the pool when the next one comes.
    pool = CropPool(15, 0)
    blocks = [build_table(build_crops(6, 5)) for _ in range(50)]
    pairs = list(pool_pairs(blocks, pool, 1.0))
    assert len(pairs) > 1000
    assert all(pair.same_identity for pair in pairs)
    assert [pair for pair in pairs if pair.source.image == pair.target.image] == []


def test_people_with_one_picture_are_paired_with_others() -> None:
    pairs = list(pool_pairs([build_table(build_crops(60, 1))], CropPool(20, 0), 1.0))
    assert len(pairs) == 40
    assert not any(pair.same_identity for pair in pairs)


def test_each_crop_is_a_target_exactly_once() -> None:
    crops = build_crops(20, 10)
    pool = CropPool(50, 3)
    pairs = list(pool_pairs([build_table(crops[:90]), build_table(crops[90:])], pool, 0.3))
    targets = [pair.target.image for pair in pairs]
    waiting = [crop.image for crop in pool.waiting]
    assert len(pairs) == 150
    assert sorted(targets + waiting) == sorted(crop.image for crop in crops)


def test_targets_do_not_come_in_the_order_of_the_rows() -> None:
    order = [int(crop.identity[-3:]) for crop in pool_crops([build_table(build_crops(40, 10))], CropPool(200, 0))]
    changes = np.mean(np.diff(order) != 0)
    assert changes > 0.9


def test_the_pool_keeps_a_bounded_number_of_rows() -> None:
    pool = CropPool(100, 0)
    for epoch in range(30):
        list(pool_pairs([build_table(build_crops(40, 5))], pool, 0.2))
        assert len(pool.waiting) <= 100, epoch
        # Twice the capacity, and what waited when the last block of 200 rows had come in.
        assert len(pool.recent) <= 2 * 100 + 100 + 200, epoch
    assert sum(map(len, pool.people.values())) == len(pool.recent)
    assert all(pool.people.values())


def test_a_person_who_fills_the_pool_is_reported_not_waited_for() -> None:
    # Rows of a person lie together: a person with more pictures than the pool holds leaves nobody to pair with.
    pool = CropPool(20, 0)
    crops = [*build_crops(3, 1), *(Crop(f"many/{number}".encode(), "many") for number in range(500))]
    blocks = (build_table([crop]) for crop in crops)
    with pytest.raises(ValueError, match=r"raise data\.pool_rows"):
        list(pool_pairs(blocks, pool, 0.5))


def test_equal_seeds_give_equal_pairs_and_others_do_not() -> None:
    def names(seed: int) -> list[tuple[bytes, bytes]]:
        return [(pair.source.image, pair.target.image) for pair in draw_epochs(1, ratio=0.2, seed=seed)]

    assert names(1) == names(1)
    assert names(1) != names(2)


def test_the_source_of_a_pair_varies() -> None:
    pairs = draw_epochs(1, ratio=0.2, seed=0)
    assert len({pair.source.image for pair in pairs}) > 400


def test_held_out_pairs_are_fixed_and_of_different_people() -> None:
    crops = build_crops(6, 4)
    pairs = draw_held_out_pairs(crops, 60, seed=5)
    again = draw_held_out_pairs(build_crops(6, 4), 60, seed=5)
    assert [(p.source.image, p.target.image) for p in pairs] == [(p.source.image, p.target.image) for p in again]
    assert not any(pair.same_identity for pair in pairs)
    for start in (0, 24):
        assert len({pair.target.image for pair in pairs[start : start + 24]}) == 24


def test_held_out_pairs_of_one_person_are_refused() -> None:
    with pytest.raises(ValueError, match="at least two people"):
        draw_held_out_pairs(build_crops(1, 9), 4, seed=0)


def test_crops_carry_what_generated_them_where_the_rows_do() -> None:
    table = build_table(build_crops(1, 3))
    assert crops_from_table(table)[0].view is None
    for name, width in (("identity_parameters", 2), ("attribute_parameters", 3), ("view", 6)):
        values = np.arange(3 * width, dtype=np.float32).reshape(3, width)
        table = table.append_column(name, [values.tolist()])
    crop = crops_from_table(table)[2]
    assert crop.identity_parameters is not None
    assert crop.identity_parameters.tolist() == [4, 5]
    assert crop.view is not None
    assert crop.view.tolist() == [12, 13, 14, 15, 16, 17]
