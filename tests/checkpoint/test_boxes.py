from __future__ import annotations

import json

import numpy as np
import pytest

from fusionray.checkpoint.boxes import Box, Held, divide, make_up
from tests.support.child_python import run_python

# Each rank of a group that exchanges nothing says which box it holds of tensors that are divided in several ways.
RANKS = """
import json
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from fusionray.checkpoint.boxes import find_box

WAYS = {
    "rows": (Replicate(), Shard(0)), "both": (Shard(0), Shard(1)), "twice": (Shard(0), Shard(0)),
    "copies": (Replicate(), Replicate()),
}
found = {name: [] for name in WAYS}
for rank in range(4):
    dist.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
    mesh = init_device_mesh("cpu", (2, 2))
    with torch.no_grad():
        for name, way in WAYS.items():
            whole = torch.arange(35).view(5, 7)
            part = distribute_tensor(whole, mesh, way, src_data_rank=None)
            box = find_box(part)
            assert torch.equal(whole[box.cut(find_box(whole))], part.to_local())
            found[name].append([box.offsets, box.sizes])
        try:
            find_box(DTensor.from_local(torch.ones(2), mesh, (Partial(), Replicate()), run_check=False))
            raise SystemExit("a partial tensor has a box")
        except TypeError as error:
            assert "not P(sum)" in str(error), error
    dist.destroy_process_group()
print(json.dumps(found))
"""


def hold(name: str, shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Held:
    return Held(name, shape, Box(offsets, sizes), 4 * int(np.prod(sizes)))


def whole(name: str, length: int) -> Held:
    return hold(name, (length,), (0,), (length,))


def test_boxes_overlap_where_both_have_numbers() -> None:
    one, other = Box((0, 2), (4, 3)), Box((2, 0), (5, 4))
    assert one.overlap(other) == other.overlap(one) == Box((2, 2), (2, 2))
    assert one.overlap(Box((4, 2), (1, 3))) is None
    values = np.arange(70).reshape(7, 10)
    common = Box((2, 2), (2, 2))
    held = values[0:4, 2:5]
    np.testing.assert_array_equal(held[common.cut(one)], values[2:4, 2:4])
    assert Box((), ()).overlap(Box((), ())) == Box((), ())


def test_the_box_of_a_sharded_tensor_is_where_its_numbers_are() -> None:
    found = json.loads(run_python("-W", "ignore", "-c", RANKS))
    assert found["copies"] == [[[0, 0], [5, 7]]] * 4
    assert found["rows"] == [[[0, 0], [3, 7]], [[3, 0], [2, 7]]] * 2
    assert found["both"] == [[[0, 0], [3, 4]], [[0, 4], [3, 3]], [[3, 0], [2, 4]], [[3, 4], [2, 3]]]
    assert found["twice"] == [[[0, 0], [2, 7]], [[2, 0], [1, 7]], [[3, 0], [1, 7]], [[4, 0], [1, 7]]]


def test_ranks_divide_what_several_hold_into_equal_shares() -> None:
    common = [whole("a", 50), whole("b", 30), whole("c", 20)]
    shares = divide([[*common, whole("alone", 10)], common])
    assert sorted(item.name for share in shares for item in share) == ["a", "alone", "b", "c"]
    assert [sum(item.num_bytes for item in share) for share in shares] == [240, 200]
    assert divide([common]) == [common]


def test_what_one_rank_alone_holds_is_saved_by_it_alone() -> None:
    top, bottom = hold("w", (5, 2), (0, 0), (3, 2)), hold("w", (5, 2), (3, 0), (2, 2))
    assert divide([[top], [bottom]]) == [[top], [bottom]]


def test_a_rank_with_nothing_of_a_tensor_saves_nothing_and_a_tensor_of_no_numbers_is_saved_once() -> None:
    row, beyond = hold("row", (1, 4), (0, 0), (1, 4)), hold("row", (1, 4), (1, 0), (0, 4))
    nothing = whole("nothing", 0)
    assert divide([[row, nothing], [beyond, nothing]]) == [[row], [nothing]]


@pytest.mark.parametrize(
    "held",
    [
        [[hold("w", (4,), (0,), (2,))], [hold("w", (4,), (1,), (2,))]],
        [[hold("w", (4,), (0,), (2,))], []],
        [[hold("w", (4,), (0,), (4,))], [hold("w", (5,), (0,), (5,))]],
    ],
    ids=["overlap", "gap", "shapes"],
)
def test_boxes_that_make_no_tensor_are_refused(held: list[list[Held]]) -> None:
    with pytest.raises(ValueError, match="w: what the ranks hold of it does not make up one tensor"):
        divide(held)


def test_boxes_of_the_right_size_in_all_may_still_overlap() -> None:
    quarters = [Box((row, column), (2, 2)) for row in (0, 2) for column in (0, 2)]
    assert make_up((4, 4), quarters)
    assert not make_up((4, 4), [*quarters[:3], Box((1, 1), (2, 2))])
    assert not make_up((4,), [Box((0,), (3,)), Box((2,), (1,))])
    assert make_up((), [Box((), ())])
    assert make_up((0, 3), [])
