"""Ascending rows as ranges: 100 million rows, of which a part has been drawn, take kilobytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from fusionray.data.segments import RowIndices


class RowRanges:
    """Rows in ascending order: those of `starts[0]` to `stops[0]` - 1, then those of the next range, int64 each."""

    def __init__(self, starts: RowIndices, stops: RowIndices) -> None:
        self.starts = starts
        self.stops = stops

    @classmethod
    def first(cls, count: int) -> RowRanges:
        """Return the rows 0 to `count` - 1."""
        return cls(np.zeros(1, np.int64), np.array([count], np.int64))

    @classmethod
    def of(cls, rows: RowIndices) -> RowRanges:
        """Return ascending rows as the fewest ranges."""
        gaps = np.flatnonzero(np.diff(rows) != 1)
        some = min(1, len(rows))
        return cls(
            np.concatenate([rows[:some], rows[gaps + 1]]), np.concatenate([rows[gaps], rows[len(rows) - some :]]) + 1
        )

    @classmethod
    def join(cls, parts: Sequence[RowRanges]) -> RowRanges:
        """Join rows, those of each part greater than those of the one before it."""
        return cls(np.concatenate([part.starts for part in parts]), np.concatenate([part.stops for part in parts]))

    @cached_property
    def offsets(self) -> RowIndices:
        """Count the rows before each range, and at last all rows, int64 [ranges + 1]."""
        return np.concatenate([[0], np.cumsum(self.stops - self.starts)])

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def part(self, start: int, stop: int | None = None) -> RowRanges:
        """Return the rows number `start` to `stop` - 1."""
        stop = len(self) if stop is None else min(stop, len(self))
        if start >= stop:
            return RowRanges(np.empty(0, np.int64), np.empty(0, np.int64))
        first = int(np.searchsorted(self.offsets, start, side="right")) - 1
        last = int(np.searchsorted(self.offsets, stop, side="left"))
        starts, stops = self.starts[first:last].copy(), self.stops[first:last].copy()
        starts[0] += start - self.offsets[first]
        stops[-1] -= self.offsets[last] - stop
        return RowRanges(starts, stops)

    def rows(self) -> RowIndices:
        """List all rows."""
        lengths = self.stops - self.starts
        return np.arange(len(self)) + np.repeat(self.starts - self.offsets[:-1], lengths)
