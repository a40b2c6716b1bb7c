from __future__ import annotations

import time
from itertools import islice

import numpy as np
import pytest

from fusionray.data import segments
from fusionray.data.order import DataOrder, DataPosition, EpochPartition, ShuffleWindow, window_edges
from fusionray.data.segments import SEGMENT_ROWS, divide_files
from fusionray.errors import ShardMismatch

FILES = (30, 7, 41, 22, 1, 39)
NUM_ROWS = sum(FILES)
Row = tuple[int, int]


@pytest.fixture(params=[1, 3])
def stride(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Divide the small files as larger ones are, into runs of rows or into rows that alternate."""
    monkeypatch.setattr(segments, "SEGMENT_ROWS", 8)
    monkeypatch.setattr(segments, "FEWEST_ROWS", 4)
    assert isinstance(request.param, int)
    return request.param


def order(
    num_ranks: int = 1, window_rows: int = 16, seed: int = 5, files: tuple[int, ...] = FILES, stride: int = 1
) -> DataOrder:
    return DataOrder(files, seed, num_ranks, window_rows, stride)


def rows_of(window: ShuffleWindow) -> list[Row]:
    """List what a window reads, as (file, row)."""
    return [(segment.file, int(row)) for segment in window.segments for row in segment.rows]


def drawn(data: DataOrder, position: DataPosition, rank: int, count: int) -> list[Row]:
    """Draw `count` rows."""
    rows: list[Row] = []
    for window in data.windows(position, rank):
        read = rows_of(window)
        rows += [read[index] for index in window.order[window.skip :]]
        if len(rows) >= count:
            return rows[:count]
    raise AssertionError("the windows ended")


def test_one_rank_draws_every_row_once_an_epoch_and_in_another_order_the_next(stride: int) -> None:
    rows = drawn(order(stride=stride), DataPosition(), 0, 2 * NUM_ROWS)
    first, second = rows[:NUM_ROWS], rows[NUM_ROWS:]
    everything = [(file, row) for file, count in enumerate(FILES) for row in range(count)]
    assert sorted(first) == sorted(second) == everything
    assert first != second


@pytest.mark.parametrize("num_ranks", [2, 3, 7])
def test_ranks_share_an_epoch_and_leave_less_than_a_row_each(num_ranks: int) -> None:
    data = order(num_ranks)
    rows_per_rank = NUM_ROWS // num_ranks
    rows = [row for rank in range(num_ranks) for row in drawn(data, DataPosition(), rank, rows_per_rank)]
    assert len(set(rows)) == len(rows) == rows_per_rank * num_ranks


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_a_later_position_continues_the_same_order(num_ranks: int, stride: int) -> None:
    data = order(num_ranks, stride=stride)
    for rank in range(num_ranks):
        whole = drawn(data, DataPosition(), rank, 400)
        position = DataPosition()
        done = 0
        for step in (1, 5, 16, 3, 61, 97, 140):
            # Steps that do not divide leave some ranks a row ahead of others.
            done += data.local_rows(position, step, rank)
            position = data.advance(position, step)
            assert drawn(data, position, rank, 60) == whole[done : done + 60], (rank, done)


def test_positions_add_up_and_cross_several_epochs_at_once() -> None:
    data = order(2)
    step_by_step = DataPosition()
    for _ in range(500):
        step_by_step = data.advance(step_by_step, 1)
    assert data.advance(DataPosition(), 500) == step_by_step
    assert step_by_step.epoch == 500 // 140
    assert data.advance(DataPosition(), 140) == DataPosition(epoch=1)
    assert data.advance(step_by_step, 0) == step_by_step


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
def test_the_local_rows_of_a_step_add_up_and_differ_by_at_most_one(num_ranks: int) -> None:
    data = order(num_ranks)
    position = DataPosition()
    totals = [0] * num_ranks
    for _ in range(100):
        shares = [data.local_rows(position, 16, rank) for rank in range(num_ranks)]
        assert sum(shares) == 16
        totals = [total + local_rows for total, local_rows in zip(totals, shares, strict=True)]
        assert max(totals) - min(totals) <= 1
        position = data.advance(position, 16)


def test_a_position_survives_json() -> None:
    position = DataPosition(epoch=3, partitions=(EpochPartition(num_ranks=2, window_rows=16, drawn=9),))
    assert DataPosition.model_validate_json(position.model_dump_json()) == position
    assert DataPosition.model_validate(position.model_dump(mode="json")) == position


@pytest.mark.parametrize(
    "plan",
    [
        [(2, 16, 46), (1, 16, 31), (3, 16, 10**6)],
        [(1, 16, 1), (3, 16, 3), (2, 16, 2), (1, 16, 10**6)],
        [(3, 16, 134), (2, 16, 10**6)],
        [(2, 16, 33), (2, 50, 61), (2, 7, 10**6)],
        # One rank has drawn all of its part while the other two have one row left.
        [(3, 16, 137), (1, 16, 10**6)],
    ],
)
def test_every_row_is_drawn_once_though_ranks_or_windows_change_within_an_epoch(
    plan: list[tuple[int, int, int]], stride: int
) -> None:
    position = DataPosition()
    seen: list[Row] = []
    for num_ranks, window_rows, steps in plan:
        data = order(num_ranks, window_rows, stride=stride)
        epoch, partitions, rows_per_rank = data.open_partition(position)
        assert epoch == 0
        count = min(steps, rows_per_rank * num_ranks - partitions[-1].total)
        for rank in range(num_ranks):
            seen += drawn(data, position, rank, data.local_rows(position, count, rank))
        position = data.advance(position, count)
    assert len(set(seen)) == len(seen)
    # What is dropped is the remainder of the last division only.
    assert NUM_ROWS - len(seen) < plan[-1][0]
    assert position == DataPosition(epoch=1)


def test_the_same_ranks_continue_their_partition_and_others_start_one() -> None:
    position = order(2).advance(DataPosition(), 21)
    assert [partition.total for partition in order(2).advance(position, 10).partitions] == [31]
    assert [(partition.num_ranks, partition.total) for partition in order(1).advance(position, 5).partitions] == [
        (2, 21),
        (1, 5),
    ]


def test_too_few_rows_for_more_ranks_end_the_epoch() -> None:
    position = order(1).advance(DataPosition(), NUM_ROWS - 2)
    assert order(3).advance(position, 3) == DataPosition(
        epoch=1, partitions=(EpochPartition(num_ranks=3, window_rows=16, drawn=1),)
    )


def test_windows_are_bounded_and_none_is_much_shorter() -> None:
    for rows_per_rank in (1, 15, 16, 17, 33, 1000):
        sizes = np.diff(window_edges(rows_per_rank, 16))
        assert sizes.sum() == rows_per_rank
        assert sizes.max() <= 16
        assert sizes.min() >= min(rows_per_rank, 8)


def test_the_last_rows_of_an_epoch_are_read_with_others_for_pairs() -> None:
    position = order(1).advance(DataPosition(), NUM_ROWS - 4)
    window = next(order(3).windows(position, 1))
    assert len(window.order) == 1
    rows = rows_of(window)
    assert len(rows) == len(set(rows)) == 8
    # The drawn row is one of those that remained.
    left = drawn(order(1), position, 0, 4)
    assert rows[window.order[0]] in left


@pytest.mark.parametrize("stride", [1, 2, 8])
@pytest.mark.parametrize("files", [(1,), (0, 3, 511, 512, 513), (100, 767, 768, 5000, 8192, 9001)])
def test_segments_hold_every_row_of_the_files_once(files: tuple[int, ...], stride: int) -> None:
    table = divide_files(np.asarray(files), stride)
    rows = [
        (int(file), int(row))
        for file, first, step, count in zip(*table, strict=True)
        for row in first + step * np.arange(count)
    ]
    assert sorted(rows) == [(file, row) for file, count in enumerate(files) for row in range(count)]
    assert table.length.max() < SEGMENT_ROWS * 1.5
    assert table.step.max() <= stride


def test_windows_for_pairs_read_runs_of_rows_from_all_files() -> None:
    data = order(1, 4096, files=(10_000,) * 10)
    window = next(data.windows(DataPosition(), 0))
    assert all((np.diff(segment.rows) == 1).all() for segment in window.segments)
    # 23 windows, 8 segments of 512 rows each; the first and the last one may be cut.
    assert len(window.segments) in (8, 9, 10)
    assert len({segment.file for segment in window.segments}) > 3


@pytest.mark.parametrize("file_rows", [512, 10_000])
def test_windows_of_single_pictures_show_several_times_as_many_people(file_rows: int) -> None:
    """Files of 10 or 200 people with 50 pictures each; a window of 8,192 rows of 200,000."""
    files = (file_rows,) * (204_800 // file_rows)
    people, appearances = {}, {}
    for stride in (1, 8):
        windows = list(islice(order(1, 8192, files=files, stride=stride).windows(DataPosition(), 0), 25))
        seen = [{(segment.file, int(row) // 50) for segment in w.segments for row in segment.rows} for w in windows]
        people[stride] = np.mean([len(window) for window in seen])
        appearances[stride] = sum(len(window) for window in seen) / len(set().union(*seen))
    assert people[1] < 250
    assert people[8] > 4 * people[1]
    # A person is drawn throughout the epoch.
    assert appearances[1] < 1.5
    assert appearances[8] > 5


def test_seeds_and_epochs_differ() -> None:
    first = drawn(order(seed=1), DataPosition(), 0, 50)
    assert first == drawn(order(seed=1), DataPosition(), 0, 50)
    assert first != drawn(order(seed=2), DataPosition(), 0, 50)
    assert first != drawn(order(seed=1), DataPosition(epoch=1), 0, 50)


def test_fewer_rows_than_ranks_are_refused() -> None:
    with pytest.raises(ShardMismatch, match="2 pictures cannot be shared by 3 workers"):
        order(3, files=(1, 1))


def test_ten_million_rows_are_ordered_in_a_moment() -> None:
    data = DataOrder((10_000,) * 1000, 0, 8, 4096)
    position = DataPosition(epoch=2, partitions=(EpochPartition(num_ranks=6, window_rows=4096, drawn=900_000),))
    started = time.process_time()
    position = data.advance(position, 64 * 8)
    window = next(data.windows(position, 7))
    assert time.process_time() - started < 2
    assert window.skip == 64
