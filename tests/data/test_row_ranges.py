from __future__ import annotations

import numpy as np
import pytest

from fusionray.data.row_ranges import RowRanges


@pytest.mark.parametrize("rows", [[], [0], [3], [0, 1, 2], [1, 2, 5, 6, 7, 9, 20], [0, 2, 4, 6]])
def test_ranges_hold_the_rows_and_are_cut_as_they_are(rows: list[int]) -> None:
    expected = np.array(rows, np.int64)
    ranges = RowRanges.of(expected)
    assert len(ranges) == len(rows)
    assert len(ranges.starts) == 1 + np.count_nonzero(np.diff(expected) != 1) if rows else not len(ranges.starts)
    for start in range(len(rows) + 2):
        assert ranges.part(start).rows().tolist() == rows[start:]
        for stop in range(len(rows) + 2):
            assert ranges.part(start, stop).rows().tolist() == rows[start:stop]
            joined = RowRanges.join([ranges.part(0, start), ranges.part(start, stop), ranges.part(max(start, stop))])
            assert joined.rows().tolist() == rows[: max(start, stop)] + rows[max(start, stop) :]


def test_many_rows_take_little_memory() -> None:
    rows = RowRanges.first(10**12)
    assert len(rows) == 10**12
    part = RowRanges.join([rows.part(7, 9), rows.part(10**11)]).part(1, 4)
    assert part.rows().tolist() == [8, 10**11, 10**11 + 1]
