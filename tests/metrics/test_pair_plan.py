from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from fusionray.metrics.pair_plan import PairPlan, plan_pairs

# People of 1 to 6 pictures, their rows mixed.
NAMES = [f"p{person}" for number in range(6) for person in range(6) if number <= person]


def plan(names: list[str] = NAMES, **changes: int) -> PairPlan:
    return plan_pairs(names, **{"pairs": 24, "people": 100, "gallery_images": 2, "seed": 3, **changes})


def test_equal_seeds_give_equal_lists_and_other_seeds_other_ones() -> None:
    first, again, other = plan(), plan(), plan(seed=4)
    assert (first.pairs == again.pairs).all()
    assert (first.gallery == again.gallery).all()
    assert not np.array_equal(first.pairs, other.pairs)
    assert not np.array_equal(first.gallery, other.gallery)


def test_pairs_are_of_different_people_and_none_comes_twice() -> None:
    pairs = plan(pairs=100).pairs.tolist()
    assert all(NAMES[source] != NAMES[target] for source, target in pairs)
    assert len({tuple(pair) for pair in pairs}) == len(pairs)


def test_gallery_pictures_are_never_fused_where_the_person_has_others() -> None:
    chosen = plan(pairs=100)
    gallery, fused = set(chosen.gallery.tolist()), set(chosen.pairs.ravel().tolist())
    assert {NAMES[row] for row in gallery & fused} == {"p0"}  # one picture has to do for both
    assert chosen.num_single == 1
    assert Counter(NAMES[row] for row in gallery) == {"p0": 1, "p1": 1, "p2": 2, "p3": 2, "p4": 2, "p5": 2}


def test_every_person_is_source_and_target_equally_often() -> None:
    names = [f"p{person}" for person in range(7) for _ in range(5)]
    pairs = plan(names, pairs=21).pairs
    for role in (0, 1):
        assert set(Counter(names[row] for row in pairs[:, role]).values()) == {3}
    one_more = Counter(names[row] for row in plan(names, pairs=23).pairs[:, 0])
    assert sorted(one_more.values()) == [3] * 5 + [4] * 2


def test_a_small_split_gives_each_of_its_pairs_once() -> None:
    names = ["a"] * 3 + ["b"] * 2 + ["c"] * 2
    chosen = plan(names, pairs=1000, gallery_images=1)
    rows = {name: [row for row in range(7) if names[row] == name and row not in chosen.gallery] for name in "abc"}
    wanted = {(s, t) for first, second in permutations("abc", 2) for s in rows[first] for t in rows[second]}
    assert {tuple(pair) for pair in chosen.pairs.tolist()} == wanted
    assert len(chosen.pairs) == len(wanted)


def test_no_more_people_are_drawn_than_asked_for() -> None:
    chosen = plan(people=3)
    assert chosen.num_people == 3
    assert len({NAMES[row] for row in chosen.used_rows()}) == 3


def test_one_person_is_refused() -> None:
    with pytest.raises(ValueError, match="pairs need two people, but there are 1 in 4 pictures"):
        plan(["a"] * 4)
