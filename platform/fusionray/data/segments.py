"""Segments: the parts of shard files that are read at once, and permuted in each epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RowIndices = NDArray[np.int64]

# Rows of a segment: enough to amortise a request, few enough to hold several in memory. Whole row groups of a shard.
SEGMENT_ROWS = 512
# A file of few rows is divided into segments of about this many: to read fewer at once costs more than it mixes.
FEWEST_ROWS = 64


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows to read from one file: `rows` int64, ascending, numbered within the file."""

    file: int
    rows: RowIndices


class SegmentTable(NamedTuple):
    """Segments as columns, int64 [N] each: segment i has the rows `first + step * arange(length)` of a file."""

    file: RowIndices
    first: RowIndices
    step: RowIndices
    length: RowIndices


def divide_files(file_rows: RowIndices, stride: int) -> SegmentTable:
    """Divide files into stretches of `stride` * SEGMENT_ROWS rows, and each stretch into at most `stride` segments, the
    rows of which alternate.

    The last stretch of a file has up to half more rows, or fewer, and its segments too: at least some FEWEST_ROWS.
    """
    stretch_rows = SEGMENT_ROWS * stride
    stretches = divide_nearly(file_rows, stretch_rows)
    file = np.repeat(np.arange(len(file_rows)), stretches)
    number = count_within(stretches)
    first = number * stretch_rows
    length = np.where(number == stretches[file] - 1, file_rows[file] - first, stretch_rows)
    parts = np.minimum(divide_nearly(length, FEWEST_ROWS), stride)
    file, first, length, step = (np.repeat(column, parts) for column in (file, first, length, parts))
    offset = count_within(parts)
    return SegmentTable(file, first + offset, step, -(-(length - offset) // step))


def divide_nearly(rows: RowIndices, part_rows: int) -> RowIndices:
    """Count the parts of about `part_rows` rows into which rows are divided; of any rows, one at least."""
    return np.maximum((2 * rows + part_rows) // (2 * part_rows), np.minimum(rows, 1))


def count_within(counts: RowIndices) -> RowIndices:
    """Return 0 to count - 1 for each count, one after another."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
