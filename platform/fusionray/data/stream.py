"""Stream batches from shards, in an order that can be resumed.

Rows travel encoded and are decoded in the process that uses them: decoded pixels are ten times as large.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Literal, TypeVar

from fusionray.data.decoding import CropDecoder, Labels, decode_rows
from fusionray.data.order import PAIRS, DataOrder, DataPosition, ShuffleWindow
from fusionray.data.pairs import EncodedCrops, SampledPairs, crops_from_tables, draw_pairs, rebatch
from fusionray.data.prefetch import prefetched
from fusionray.data.segments import Segment
from fusionray.data.shard_readers import ShardReader
from fusionray.types import Batch, DecodedRows

BatchT = TypeVar("BatchT", bound=Batch)


class TrainingStream:
    """The batches of one rank, from any position on, endlessly; a step has `step_rows` rows over all ranks.

    Streams from the same position yield the same batches. A stream from `order.advance(position, step_rows)` starts
    with the second batch. Memory holds at most two windows of encoded rows: the current one and the next one.
    """

    def __init__(
        self, order: DataOrder, reader: ShardReader, decoder: CropDecoder, *, rank: int, step_rows: int
    ) -> None:
        self.order = order
        self.reader = reader
        self.decoder = decoder
        self.rank = rank
        self.step_rows = step_rows

    def batches(
        self,
        position: DataPosition,
        collate: Callable[[Sequence[DecodedRows]], BatchT],
        *,
        num_roles: Literal[1, 2],
        same_identity_ratio: float = 0.0,
        source_folder: str | None = None,
        labels: Labels | None = None,
    ) -> Iterator[BatchT]:
        """Yield batches. With two roles, each row is a target, for which a source is drawn.

        `source_folder`: pictures in this folder are the sources instead, as in `pairs.draw_pairs`. `labels`: the label
        of each person. Without it, labels only show whether source and target are one person.

        Raises: ValueError if a window for pairs holds only one person; ShardCorrupt; DataTimeout.
        """

        def draw_both(window: ShuffleWindow, crops: EncodedCrops) -> SampledPairs:
            return draw_pairs(
                crops,
                window.order,
                window.random(PAIRS),
                same_identity_ratio=same_identity_ratio,
                source_folder=source_folder,
            )

        draw = draw_both if num_roles == 2 else draw_each_row
        for group in rebatch(self.draws(position, draw), self.local_sizes(position)):
            yield collate(decode_rows(group, self.decoder, labels))

    def local_sizes(self, position: DataPosition) -> Iterator[int]:
        """Yield the rows of this rank in one step after another; they differ by at most one."""
        while True:
            yield self.order.local_rows(position, self.step_rows, self.rank)
            position = self.order.advance(position, self.step_rows)

    def draws(
        self, position: DataPosition, draw: Callable[[ShuffleWindow, EncodedCrops], SampledPairs]
    ) -> Iterator[SampledPairs]:
        """Draw from one window after another, while a thread reads the next one."""
        with prefetched(lambda: self.load(position), depth=1) as windows:
            for window, crops in windows:
                drawn = draw(window, crops)
                yield drawn.part(window.skip, len(drawn))

    def load(self, position: DataPosition) -> Iterator[tuple[ShuffleWindow, EncodedCrops]]:
        """Read one window after another."""
        # The reader plans ahead, in a thread of its own if it likes; each window has at least one segment.
        planned: deque[ShuffleWindow] = deque()

        def plan_segments() -> Iterator[Segment]:
            for window in self.order.windows(position, self.rank):
                planned.append(window)
                yield from window.segments

        tables = self.reader.read(plan_segments())
        for first in tables:
            window = planned.popleft()
            yield window, crops_from_tables(chain([first], islice(tables, len(window.segments) - 1)))


def draw_each_row(window: ShuffleWindow, crops: EncodedCrops) -> SampledPairs:
    """Draw each row of a window once, as the only role."""
    return SampledPairs(crops, window.order[:, None])
