"""The order in which a run trains on the rows of a split: a pure function of seed and position, equal on all ranks.

An epoch permutes segments of the files and keeps the order of rows within a segment. Where pairs are drawn, a segment
is a run of rows, so that the pictures of a person stay together. Where single pictures are drawn, the rows of a segment
are a stride apart, so that the pictures of a person, which are neighbours in a file, are spread over the epoch.
A partition divides the remaining rows of the epoch into contiguous parts of equal length, one for each rank. A rank
reads its part in windows and shuffles the rows of each window. If the number of ranks changes within an epoch, a new
partition divides the rows that no rank has drawn yet, so that each row is drawn once an epoch, but for
the few that do not divide evenly among the ranks.

In this module rows are numbered from 0 in the order of the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from pydantic import Field

from fusionray.config import Section
from fusionray.data.row_ranges import RowRanges
from fusionray.data.segments import RowIndices, Segment, SegmentTable, divide_files
from fusionray.errors import ShardMismatch

# Purposes of random numbers; each has its own stream.
SEGMENTS, WINDOW, PAIRS = 0, 1, 2
# Stride where single pictures are drawn: the people of a window are then several times as many.
SINGLE_STRIDE = 8


class EpochPartition(Section):
    """A division of the remaining rows of an epoch among ranks, and how many of them were drawn.

    Each rank has drawn `drawn` rows, and the first `extra` ranks one more.
    """

    num_ranks: int = Field(ge=1)
    window_rows: int = Field(ge=1)
    drawn: int = Field(ge=0)
    extra: int = Field(0, ge=0)

    @property
    def total(self) -> int:
        """Count the rows that all ranks have drawn."""
        return self.num_ranks * self.drawn + self.extra

    def drawn_by(self, rank: int) -> int:
        """Count the rows that a rank has drawn."""
        return self.drawn + (rank < self.extra)


class DataPosition(Section):
    """The position of a run in its data, equal on all ranks. The last partition is the current one."""

    epoch: int = Field(0, ge=0)
    partitions: tuple[EpochPartition, ...] = ()


@dataclass(frozen=True, eq=False)
class ShuffleWindow:
    """Rows that are read together and shuffled.

    `segments` hold them in the order of the epoch. `order` lists indices of these rows in the order of drawing; the
    first `skip` of them are before the position. Rows that are not in `order` are only used as sources of pairs.
    `key` seeds all other random numbers of the window.
    """

    key: tuple[int, ...]
    segments: tuple[Segment, ...]
    order: RowIndices
    skip: int

    def random(self, purpose: int) -> np.random.Generator:
        """Return the generator of a purpose in this window."""
        return np.random.default_rng([*self.key, purpose])


@dataclass(frozen=True)
class DataOrder:
    """The order of a split for a number of ranks.

    `file_rows` counts the rows of each file; a window holds at most `window_rows` rows. Rows of a segment are up to
    `stride` rows apart: a reader reads each file `stride` times an epoch.

    Raises: ShardMismatch if there are fewer rows than ranks.
    """

    file_rows: tuple[int, ...]
    seed: int
    num_ranks: int
    window_rows: int
    stride: int = 1

    def __post_init__(self) -> None:
        if self.num_rows < self.num_ranks:
            raise ShardMismatch(
                f"{self.num_rows} pictures cannot be shared by {self.num_ranks} workers; "
                "prepare more of them, or use fewer workers"
            )

    @cached_property
    def num_rows(self) -> int:
        """The number of rows of an epoch."""
        return sum(self.file_rows)

    @cached_property
    def segments(self) -> SegmentTable:
        """Divide the files into segments, in the order of the files."""
        return divide_files(np.asarray(self.file_rows, np.int64), self.stride)

    def advance(self, position: DataPosition, rows: int) -> DataPosition:
        """Return the position after all ranks together have drawn `rows` more rows; it may be in a later epoch.

        Ranks take turns: the counts of two ranks differ by at most one row.
        """
        while rows > 0:
            epoch, partitions, rows_per_rank = self.open_partition(position)
            total = min(partitions[-1].total + rows, rows_per_rank * self.num_ranks)
            rows -= total - partitions[-1].total
            if total == rows_per_rank * self.num_ranks:
                position = DataPosition(epoch=epoch + 1)
            else:
                drawn, extra = divmod(total, self.num_ranks)
                partition = partitions[-1].model_copy(update={"drawn": drawn, "extra": extra})
                position = DataPosition(epoch=epoch, partitions=(*partitions[:-1], partition))
        return position

    def local_rows(self, position: DataPosition, rows: int, rank: int) -> int:
        """Count the rows of a rank among the next `rows` rows; the counts of two ranks differ by at most one."""
        extra = self.open_partition(position)[1][-1].extra
        return (extra + rows + self.num_ranks - 1 - rank) // self.num_ranks - (rank < extra)

    def open_partition(self, position: DataPosition) -> tuple[int, tuple[EpochPartition, ...], int]:
        """Return epoch, partitions and rows per rank with which these ranks continue; the last partition is theirs.

        The epoch ends when fewer rows remain than there are ranks.
        """
        fresh = EpochPartition(num_ranks=self.num_ranks, window_rows=self.window_rows, drawn=0)
        partitions = position.partitions
        if not partitions or partitions[-1].model_copy(update={"drawn": 0, "extra": 0}) != fresh:
            partitions = (*partitions, fresh)
        left = self.num_rows - sum(partition.total for partition in partitions[:-1])
        rows_per_rank = left // self.num_ranks
        if partitions[-1].drawn >= rows_per_rank:
            return position.epoch + 1, (fresh,), self.num_rows // self.num_ranks
        return position.epoch, partitions, rows_per_rank

    def windows(self, position: DataPosition, rank: int) -> Iterator[ShuffleWindow]:
        """Yield the windows of a rank from a position on, endlessly."""
        while True:
            epoch, partitions, rows_per_rank = self.open_partition(position)
            segments = self.permute_segments(epoch)
            own = self.list_undrawn(epoch, partitions[:-1]).part(rank * rows_per_rank, (rank + 1) * rows_per_rank)
            edges = window_edges(rows_per_rank, self.window_rows)
            drawn = partitions[-1].drawn_by(rank)
            for number in range(find_window(edges, drawn), len(edges) - 1):
                start, end = edges[number], edges[number + 1]
                key = (self.seed, epoch, len(partitions) - 1, rank, number)
                yield self.plan_window(key, own.part(start, end).rows(), max(0, drawn - start), segments)
            position = DataPosition(epoch=epoch + 1)

    def plan_window(
        self, key: tuple[int, ...], rows: RowIndices, skip: int, segments: PermutedSegments
    ) -> ShuffleWindow:
        """Build the window of the given rows."""
        order = shuffle_window(key, len(rows))
        wanted = min(self.num_rows, self.window_rows // 2)
        if len(rows) < wanted:
            # After a change of ranks an epoch may end with a few rows of one person: read others to pair them with.
            read = np.union1d(rows, nearest_other_rows(rows, self.num_rows, wanted - len(rows)))
            order = np.searchsorted(read, rows)[order]
            rows = read
        return ShuffleWindow(key, tuple(segments.split(rows)), order, skip)

    def list_undrawn(self, epoch: int, partitions: Sequence[EpochPartition]) -> RowRanges:
        """List the rows of an epoch that remain after some partitions."""
        rows = RowRanges.first(self.num_rows)
        for index, partition in enumerate(partitions):
            rows_per_rank = len(rows) // partition.num_ranks
            edges = window_edges(rows_per_rank, partition.window_rows)
            left: list[RowRanges] = []
            for rank in range(partition.num_ranks):
                own = rows.part(rank * rows_per_rank, (rank + 1) * rows_per_rank)
                drawn = partition.drawn_by(rank)
                if drawn == rows_per_rank:
                    continue  # this rank is a row ahead of others, and has none left
                number = find_window(edges, drawn)
                start, end = edges[number], edges[number + 1]
                order = shuffle_window((self.seed, epoch, index, rank, number), end - start)
                window = own.part(start, end).rows()
                left += [RowRanges.of(window[np.sort(order[drawn - start :])]), own.part(end)]
            rows = RowRanges.join([*left, rows.part(partition.num_ranks * rows_per_rank)])
        return rows

    def permute_segments(self, epoch: int) -> PermutedSegments:
        """Permute the segments for an epoch."""
        permuted = np.random.default_rng([self.seed, epoch, SEGMENTS]).permutation(len(self.segments.length))
        return PermutedSegments(self.segments, permuted)


class PermutedSegments:
    """The segments of an epoch in its order, which numbers the rows of the epoch."""

    def __init__(self, table: SegmentTable, permuted: RowIndices) -> None:
        self.table = table
        self.permuted = permuted
        self.starts = np.concatenate([[0], np.cumsum(table.length[permuted])])

    def split(self, rows: RowIndices) -> Iterator[Segment]:
        """Yield the segments, or parts of them, that hold the given ascending rows of the epoch."""
        table = self.table
        places = np.searchsorted(self.starts, rows, side="right") - 1
        bounds = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(rows)]
        for begin, end in pairwise(bounds):
            place = int(places[begin])
            segment = self.permuted[place]
            inside = table.first[segment] + table.step[segment] * (rows[begin:end] - self.starts[place])
            yield Segment(int(table.file[segment]), inside)


def window_edges(num_rows: int, window_rows: int) -> list[int]:
    """Return the bounds of windows of at most `window_rows`, nearly equal: a short last one would shuffle less."""
    count = -(-num_rows // window_rows)
    return [num_rows * number // count for number in range(count + 1)]


def find_window(edges: Sequence[int], drawn: int) -> int:
    """Return the index of the window in which the next row is drawn."""
    return int(np.searchsorted(edges, drawn, side="right")) - 1


def shuffle_window(key: tuple[int, ...], count: int) -> RowIndices:
    """Shuffle the indices of a window."""
    return np.random.default_rng([*key, WINDOW]).permutation(count)


def nearest_other_rows(rows: RowIndices, num_rows: int, count: int) -> RowIndices:
    """Return the `count` next rows after the given ones that are not among them; after the last row, from the first."""
    near = (int(rows[-1]) + 1 + np.arange(min(count + len(rows), num_rows))) % num_rows
    return near[~np.isin(near, rows)][:count]
