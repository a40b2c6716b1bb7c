"""From shards to batches, in an order that can be resumed: windows of encoded rows, decoded where they are used.

Decoded pixels would travel through an object store at ten times the size; encoded rows do not notice the trip.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, tee
from typing import Literal, TypeVar

import numpy as np

from fusionray.data.decoding import CropDecoder, decode_rows
from fusionray.data.order import PAIRS, DataOrder, DataPosition, Window
from fusionray.data.pairs import Crops, SampledPairs, crops_from_tables, draw_sources, regroup
from fusionray.data.reading import ShardReader
from fusionray.types import Batch, Rows

ItemT = TypeVar("ItemT")
BatchT = TypeVar("BatchT", bound=Batch)


class TrainingStream:
    """One rank's part of steps of `step_rows` rows over all ranks, from any position on, without end.

    Two streams from one position give the same batches; a stream from `order.advance(position, step_rows)` gives what
    the other gives after one. At most two windows of encoded rows are held: one given out, one being read.
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
        collate: Callable[[Sequence[Rows]], BatchT],
        *,
        num_roles: Literal[1, 2],
        same_identity_ratio: float = 0.0,
        labels: Mapping[str, int] | None = None,
    ) -> Iterator[BatchT]:
        """Yield batches of rows in their order; of two roles, each row is the target of a source that is drawn for it.

        `labels`: the number of each person; without them labels tell only whether source and target are one.

        Raises: ValueError if pairs are to be drawn from a window that holds one person only; ShardCorrupt.
        """

        def draw_pairs(window: Window, crops: Crops) -> SampledPairs:
            sources = draw_sources(crops.person, window.order, same_identity_ratio, window.random(PAIRS))
            return SampledPairs(crops, np.stack([sources, window.order], axis=1))

        draw = draw_pairs if num_roles == 2 else draw_each
        for group in regroup(self.draws(position, draw), self.sizes(position)):
            yield collate(decode_rows(group, self.decoder, labels))

    def sizes(self, position: DataPosition) -> Iterator[int]:
        """Yield how many rows this rank takes of one step after another; they differ by one where ranks take turns."""
        while True:
            yield self.order.share(position, self.step_rows, self.rank)
            position = self.order.advance(position, self.step_rows)

    def draws(self, position: DataPosition, draw: Callable[[Window, Crops], SampledPairs]) -> Iterator[SampledPairs]:
        """Draw from one window after another, while the next one is being read."""
        with prefetched(lambda: self.load(position), depth=1) as windows:
            for window, crops in windows:
                drawn = draw(window, crops)
                yield drawn.part(window.skip, len(drawn))

    def load(self, position: DataPosition) -> Iterator[tuple[Window, Crops]]:
        """Read one window after another."""
        planned, loaded = tee(self.order.windows(position, self.rank))
        tables = self.reader.read(segment for window in planned for segment in window.segments)
        for window in loaded:
            yield window, crops_from_tables(islice(tables, len(window.segments)))


def draw_each(window: Window, crops: Crops) -> SampledPairs:
    """Draw every row of a window once."""
    return SampledPairs(crops, window.order[:, None])


@contextlib.contextmanager
def prefetched(make: Callable[[], Iterator[ItemT]], depth: int) -> Iterator[Iterator[ItemT]]:
    """Run an iterator in a thread that is at most `depth` items ahead; its errors are raised here."""
    items: queue.SimpleQueue[tuple[ItemT | None, BaseException | None]] = queue.SimpleQueue()
    # An item is made only when there is room for it: a queue of `depth` would have one more in its producer's hand.
    room = threading.Semaphore(depth)
    stopped = threading.Event()

    def produce() -> None:
        try:
            with contextlib.ExitStack() as stack:
                source = make()
                if hasattr(source, "close"):
                    stack.callback(source.close)
                while room.acquire() and not stopped.is_set():
                    items.put((next(source), None))
        except StopIteration:
            items.put((None, None))
        except BaseException as error:  # noqa: BLE001 - handed over to the consumer, whatever it is
            items.put((None, error))

    def consume() -> Iterator[ItemT]:
        while True:
            item, error = items.get()
            if error is not None:
                raise error
            if item is None:
                return
            room.release()
            yield item

    thread = threading.Thread(target=produce, name="prefetch", daemon=True)
    thread.start()
    try:
        yield consume()
    finally:
        stopped.set()
        room.release()
        thread.join(timeout=5)
