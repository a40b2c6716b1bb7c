"""The order in which rows are learned from: a pure function of seed and position, equal on all ranks.

An epoch permutes the files and keeps the rows of a file in their order, so that a person's pictures stay together. A
*cut* divides the rows that are left of the epoch into one contiguous part a rank, all equally long; a rank goes
through its part in *windows* and draws the rows of a window in random order. Another number of ranks opens another
cut over the rows that no rank has drawn yet: every row is drawn once an epoch, whoever draws it.

Rows are numbered in epoch order, from 0, in all that follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fusionray.config import Section
from fusionray.errors import ShardMismatch

Rows = NDArray[np.int64]

# What a seed is used for; two draws never share a stream of random numbers.
FILES, WINDOW, PAIRS = 0, 1, 2
# A window is read in pieces of at most so many rows: enough to amortise a request, little to hold in flight.
SEGMENT_ROWS = 512


class EpochPartition(Section):
    """One division of the rows left of an epoch: among how many ranks, and how many rows they drew.

    Each rank drew `drawn` rows, and the first `extra` ranks one more.
    """

    num_ranks: int = Field(ge=1)
    window_rows: int = Field(ge=1)
    drawn: int = Field(ge=0)
    extra: int = Field(0, ge=0)

    @property
    def total(self) -> int:
        """Count the rows that all ranks drew."""
        return self.num_ranks * self.drawn + self.extra

    def drawn_by(self, rank: int) -> int:
        """Count the rows that a rank drew."""
        return self.drawn + (rank < self.extra)


class DataPosition(Section):
    """Where in the data a run stands, the same on every rank; the last cut is the open one."""

    epoch: int = Field(0, ge=0)
    cuts: tuple[EpochPartition, ...] = ()


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows to read from one file: `rows` ascending, numbered within the file."""

    file: int
    rows: Rows


@dataclass(frozen=True, eq=False)
class Window:
    """Rows that are read together and drawn from at random.

    `segments` hold them in epoch order; `order` lists indices into them in the order of drawing, of which the first
    `skip` lie before the position. Rows that `order` leaves out serve as sources of pairs only.
    `key` seeds whatever else is drawn in the window.
    """

    key: tuple[int, ...]
    segments: tuple[Segment, ...]
    order: Rows
    skip: int

    def random(self, purpose: int) -> np.random.Generator:
        """Start the stream of random numbers that belongs to a purpose in this window."""
        return np.random.default_rng([*self.key, purpose])


@dataclass(frozen=True)
class DataOrder:
    """The order of a split for a number of ranks.

    `file_rows` counts the rows of each file; a window holds at most `window_rows` rows.

    Raises: ShardMismatch if there are fewer rows than ranks.
    """

    file_rows: tuple[int, ...]
    seed: int
    num_ranks: int
    window_rows: int

    def __post_init__(self) -> None:
        if self.num_rows < self.num_ranks:
            raise ShardMismatch(
                f"{self.num_rows} pictures cannot be shared by {self.num_ranks} workers; "
                "prepare more of them, or use fewer workers"
            )

    @property
    def num_rows(self) -> int:
        """Count the rows of an epoch."""
        return sum(self.file_rows)

    def advance(self, position: DataPosition, rows: int) -> DataPosition:
        """Return the position after all ranks together have drawn `rows` more, in this epoch and those that follow.

        Ranks take turns: none is ever more than one row ahead of another.
        """
        while rows > 0:
            epoch, cuts, part = self.open_cut(position)
            total = min(cuts[-1].total + rows, part * self.num_ranks)
            rows -= total - cuts[-1].total
            if total == part * self.num_ranks:
                position = DataPosition(epoch=epoch + 1)
            else:
                drawn, extra = divmod(total, self.num_ranks)
                cut = cuts[-1].model_copy(update={"drawn": drawn, "extra": extra})
                position = DataPosition(epoch=epoch, cuts=(*cuts[:-1], cut))
        return position

    def share(self, position: DataPosition, rows: int, rank: int) -> int:
        """Count a rank's part of the next `rows` rows; parts differ by one row where they do not divide."""
        extra = self.open_cut(position)[1][-1].extra
        return (extra + rows + self.num_ranks - 1 - rank) // self.num_ranks - (rank < extra)

    def open_cut(self, position: DataPosition) -> tuple[int, tuple[EpochPartition, ...], int]:
        """Find where these ranks go on: epoch, cuts of which the last is theirs, and how long its parts are.

        An epoch with too few rows left to give each rank one is over.
        """
        fresh = EpochPartition(num_ranks=self.num_ranks, window_rows=self.window_rows, drawn=0)
        cuts = position.cuts
        if not cuts or cuts[-1].model_copy(update={"drawn": 0, "extra": 0}) != fresh:
            cuts = (*cuts, fresh)
        left = self.num_rows - sum(cut.total for cut in cuts[:-1])
        part = left // self.num_ranks
        if cuts[-1].drawn >= part:
            return position.epoch + 1, (fresh,), self.num_rows // self.num_ranks
        return position.epoch, cuts, part

    def windows(self, position: DataPosition, rank: int) -> Iterator[Window]:
        """Yield a rank's windows from a position on, without end."""
        while True:
            epoch, cuts, part = self.open_cut(position)
            own = self.list_undrawn(epoch, cuts[:-1])[rank * part : (rank + 1) * part].copy()
            edges = window_edges(part, self.window_rows)
            drawn = cuts[-1].drawn_by(rank)
            for number in range(find_window(edges, drawn), len(edges) - 1):
                start, end = edges[number], edges[number + 1]
                key = (self.seed, epoch, len(cuts) - 1, rank, number)
                yield self.plan_window(key, own[start:end], max(0, drawn - start))
            position = DataPosition(epoch=epoch + 1)

    def plan_window(self, key: tuple[int, ...], rows: Rows, skip: int) -> Window:
        """Plan how to read and draw the given rows."""
        order = draw_order(key, len(rows))
        wanted = min(self.num_rows, self.window_rows // 2)
        if len(rows) < wanted:
            # The rest of an epoch that another number of ranks had begun may be a few rows of one person.
            read = np.union1d(rows, nearest_others(rows, self.num_rows, wanted - len(rows)))
            order = np.searchsorted(read, rows)[order]
            rows = read
        return Window(key, tuple(self.locate(key[1], rows)), order, skip)

    def list_undrawn(self, epoch: int, cuts: Sequence[EpochPartition]) -> Rows:
        """List the rows, ascending, that are left of an epoch after some cuts."""
        rows = np.arange(self.num_rows, dtype=np.int64)
        for index, cut in enumerate(cuts):
            part = len(rows) // cut.num_ranks
            edges = window_edges(part, cut.window_rows)
            left: list[Rows] = []
            for rank in range(cut.num_ranks):
                own, drawn = rows[rank * part : (rank + 1) * part], cut.drawn_by(rank)
                if drawn == part:
                    continue  # a row ahead of the others, which still have one
                number = find_window(edges, drawn)
                start, end = edges[number], edges[number + 1]
                order = draw_order((self.seed, epoch, index, rank, number), end - start)
                left += [own[start:end][np.sort(order[drawn - start :])], own[end:]]
            rows = np.concatenate([*left, rows[cut.num_ranks * part :]])
        return rows

    def locate(self, epoch: int, rows: Rows) -> Iterator[Segment]:
        """Find the files that hold some ascending rows of an epoch."""
        files = np.random.default_rng([self.seed, epoch, FILES]).permutation(len(self.file_rows))
        starts = np.concatenate([[0], np.cumsum(np.asarray(self.file_rows, np.int64)[files])])
        places = np.searchsorted(starts, rows, side="right") - 1
        # A change of file ends a segment, as does its length.
        bounds = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(rows)]
        for first, last in pairwise(bounds):
            for begin in range(first, last, SEGMENT_ROWS):
                place = int(places[begin])
                yield Segment(int(files[place]), rows[begin : min(begin + SEGMENT_ROWS, last)] - starts[place])


def window_edges(part: int, window_rows: int) -> list[int]:
    """Divide a part into windows of at most `window_rows`, equally long: a short last one would mix less."""
    count = -(-part // window_rows)
    return [part * number // count for number in range(count + 1)]


def find_window(edges: Sequence[int], drawn: int) -> int:
    """Find the window in which the next row is drawn."""
    return int(np.searchsorted(edges, drawn, side="right")) - 1


def draw_order(key: tuple[int, ...], count: int) -> Rows:
    """Shuffle the indices of a window."""
    return np.random.default_rng([*key, WINDOW]).permutation(count)


def nearest_others(rows: Rows, num_rows: int, count: int) -> Rows:
    """Choose `count` rows that follow the given ones most closely, going on at the start after the end."""
    free = np.ones(num_rows, bool)
    free[rows] = False
    others = np.flatnonzero(free)
    first = int(np.searchsorted(others, rows[-1]))
    return others[np.arange(first, first + count) % len(others)]
