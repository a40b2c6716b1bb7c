"""Read segments of shards with Ray Data, ahead of the training worker and beside it.

One data set is a plan of many tasks. Its executor runs in a process of its own (`streaming_split`), which costs the
worker less than reading itself would. The next data set is opened while the second half of one is used, so that epochs,
and data sets, have no gap between them. A reader begins at any segment: what is to be read is given, not found.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice, tee
from typing import Any

import pyarrow as pa
import ray
import ray.data
import ray.exceptions
from ray.data import ExecutionOptions

from fusionray.data.prefetch import PrefetchedItems, prefetched
from fusionray.data.ray_data_internals import READER_ENVIRONMENT, RestWhileFull, kill_coordinator, split_dataset
from fusionray.data.segment_source import (
    BlockHeader,
    ReadSegments,
    SegmentPart,
    SegmentSource,
    decode_table,
    divide_segments,
    read_header,
)
from fusionray.data.segments import Segment
from fusionray.data.shard_files import SegmentRows, ShardFiles
from fusionray.data.shard_readers import CorruptionTracker, LocalReader
from fusionray.errors import DataTimeout, ShardCorrupt

# How long a process of Ray may take to start, be the machine ever so busy; it says nothing of the storage.
START_SECONDS = 120.0
# Encoded bytes that one task reads: enough to amortise its scheduling, few enough to hold several tasks in memory.
TASK_BYTES = 8 * 2**20
# The same for tasks that decode: bytes of pixels.
DECODED_TASK_BYTES = 32 * 2**20
# Tasks of one data set, 8 GiB: the process of a new one takes four seconds of a core, so it should come seldom.
TASKS_PER_DATASET = 1024
SEGMENTS_PER_TASK = 16
# Tasks at once that suit an object store, whose requests wait, and tasks that decode on other nodes.
OBJECT_STORAGE_TASKS = 8
DECODE_TASKS = 4

Block = tuple[BlockHeader, pa.Table]


@dataclass
class RayDataReader:
    """Read through Ray Data, in the order of the segments.

    Its processes take seconds to start, so the first `local_rows` rows are read in this process. `tasks_at_once`: read
    tasks that run at the same time; `decode_size`: decode crops of this size in the tasks, which
    then take a CPU each, on whichever node of the cluster has one. Otherwise tasks read on this node, and take no CPU.
    """

    files: ShardFiles
    corruption: CorruptionTracker = field(default_factory=CorruptionTracker)
    timeout_seconds: float = 120.0
    local_rows: int = 0
    tasks_at_once: int = 1
    decode_size: int | None = None

    def __post_init__(self) -> None:
        self.shared_files = ray.put(self.files)
        self.running: set[Execution] = set()
        # Rows of the blocks that were taken, by the address of the node that read them.
        self.rows_by_node: Counter[str] = Counter()
        self.closed = False

    def close(self) -> None:
        """End all processes at once: a task that hangs on the storage would not end by itself."""
        self.closed = True
        for execution in tuple(self.running):
            execution.kill()

    def read(self, segments: Iterable[Segment]) -> Iterator[pa.Table]:
        """Read segments, some tasks ahead; see ShardReader.

        Raises: ShardCorrupt; DataTimeout if the processes do not start or no rows come in time.
        """
        waiting = iter(segments)
        yield from self.read_locally(waiting)
        planned, wanted = tee(waiting)
        row_bytes = 4 * self.decode_size**2 if self.decode_size else self.files.row_bytes
        rows_per_task = max(1, (DECODED_TASK_BYTES if self.decode_size else TASK_BYTES) // row_bytes)
        with contextlib.closing(self.read_blocks(divide_segments(planned, rows_per_task, SEGMENTS_PER_TASK))) as blocks:
            rows = BlockRows(blocks)
            for segment in wanted:
                yield self.corruption.record(rows.take(len(segment.rows)))

    def read_locally(self, segments: Iterator[Segment]) -> Iterator[pa.Table]:
        """Read segments in a thread of this process, until they hold `local_rows` rows.

        Raises: ShardCorrupt, DataTimeout.
        """
        local = LocalReader(self.files, self.corruption)
        with prefetched(lambda: local.read(take_rows(segments, self.local_rows)), depth=2) as tables:
            while True:
                try:
                    table = tables.take(self.timeout_seconds)
                except StopIteration:
                    return
                except TimeoutError:
                    raise self.slow_storage() from None
                yield decode_table(table, self.files, self.decode_size) if self.decode_size else table

    def slow_storage(self) -> DataTimeout:
        """Build the error of storage that delivers nothing."""
        return DataTimeout(
            f"{self.files.folder}: no rows came for {self.timeout_seconds:g} s; check the storage, or raise "
            "data.timeout_seconds if it is only slow"
        )

    def read_blocks(self, parts: Iterator[list[SegmentPart]]) -> Generator[Block]:
        """Read the blocks of one data set after another."""
        with ExitStack() as running:
            current = running.enter_context(self.open_dataset(take_tasks(parts)))
            while current.parts:
                with ExitStack() as opening:
                    following: Execution | None = None
                    for header, block in current.blocks():
                        if following is None and header.task >= len(current.parts) // 2:
                            following = opening.enter_context(self.open_dataset(take_tasks(parts)))
                        self.rows_by_node[header.node] += header.rows
                        yield header, block
                    assert following is not None
                    running.close()
                    current = following
                    running.push(opening.pop_all())

    @contextlib.contextmanager
    def open_dataset(self, parts: Sequence[Sequence[SegmentPart]]) -> Iterator[Execution]:
        """Open a data set and read its first block; leaving the context ends its processes."""
        execution = Execution(self, parts)
        self.running.add(execution)
        try:
            if parts:
                execution.start(0)
            yield execution
        finally:
            self.running.discard(execution)
            execution.stop()

    def build_dataset(self, parts: Sequence[Sequence[SegmentPart]], first: int) -> ray.data.Dataset:
        """Build the data set of the parts from number `first` on; its first task has no segments."""
        numbered = [(first - 1, ()), *enumerate(parts[first:], first)]
        tasks = [
            ReadSegments(self.shared_files, number, part, self.corruption.max_damaged_files, self.decode_size)
            for number, part in numbered
        ]
        here = None if self.decode_size else {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
        dataset = ray.data.read_datasource(
            SegmentSource(tasks),
            override_num_blocks=len(tasks),
            concurrency=self.tasks_at_once,
            # No CPU for reading: the workers may hold all of them, and the tasks would never start.
            num_cpus=1 if self.decode_size else 0,
            label_selector=here,
            runtime_env=READER_ENVIRONMENT,
        )
        context = dataset.context
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        # A task gives one block.
        context.target_max_block_size = None
        # A long validation, in which nobody takes blocks, is no fault.
        context.execution_no_progress_timeout_s = -1
        context.custom_execution_callback_classes = [RestWhileFull]
        context.execution_options = ExecutionOptions(preserve_order=True)
        return dataset


class Execution:
    """A data set that is being read, by processes that may die and be replaced."""

    def __init__(self, reader: RayDataReader, parts: Sequence[Sequence[SegmentPart]]) -> None:
        self.reader = reader
        self.parts = parts
        self.running = ExitStack()
        self.items: PrefetchedItems[pa.Table]
        self.split: ray.data.DataIterator | None = None

    def start(self, first: int) -> None:
        """Start reading at a part."""
        self.split = None
        self.items = self.running.enter_context(prefetched(lambda: self.open_blocks(first), depth=2))
        # Called before the thread is waited for, which may hang on the storage.
        self.running.callback(self.kill)

    def open_blocks(self, first: int) -> Iterator[pa.Table]:
        """Build the data set and iterate over its blocks; called in the thread."""
        self.split = split_dataset(self.reader.build_dataset(self.parts, first))
        # No prefetching of its own: it would hold a block back until the next one is there.
        return iter(self.split.iter_batches(batch_size=None, batch_format=None, prefetch_batches=0))

    def kill(self) -> None:
        """Kill the process of the executor."""
        if self.split is not None:
            kill_coordinator(self.split)

    def stop(self) -> None:
        """End processes and the thread."""
        self.running.close()

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks in order; if the process of the executor dies, go on behind the last one.

        Raises: DataTimeout; the error of a task.
        """
        part = 0
        starting = True
        while part < len(self.parts):
            try:
                block = self.take(starting=starting)
            except ray.exceptions.RayActorError:
                if self.reader.closed:
                    raise
                self.stop()
                self.start(part)
                starting = True
                continue
            header = read_header(block)
            starting = False
            # The first task has no segments.
            if header.task == part:
                part += 1
                yield header, block

    def take(self, *, starting: bool) -> pa.Table:
        """Wait for a block; `starting`: for the first one, which comes when the processes have started.

        Raises: DataTimeout; RayActorError if the process of the executor died; the error of a task.
        """
        folder = self.reader.files.folder
        limit = START_SECONDS if starting else self.reader.timeout_seconds
        try:
            return self.items.take(limit)
        except TimeoutError:
            if starting:
                needed = "a free CPU for data.decode=nodes, " if self.reader.decode_size else ""
                raise DataTimeout(
                    f"{folder}: the processes that read the shards did not start within {limit:g} s; "
                    f"check {needed}the load and the free memory of the node"
                ) from None
            raise self.reader.slow_storage() from None


class BlockRows:
    """The rows of blocks, taken in any numbers; blocks are cut, not copied."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self.blocks = blocks
        self.header = BlockHeader(0, 0)
        self.table: pa.Table | None = None
        self.used = 0

    def take(self, count: int) -> SegmentRows:
        """Take rows, with the errors that were met while reading them.

        Raises: ShardCorrupt if they cannot be read.
        """
        parts: list[pa.Table] = []
        errors: dict[str, str] = {}
        while count:
            if self.used == self.header.rows:
                if self.header.failed:
                    raise ShardCorrupt(self.header.failed)
                self.header, self.table = next(self.blocks)
                self.used = 0
                continue
            assert self.table is not None
            end = min(self.used + count, self.header.rows)
            for row, found in self.header.errors:
                if self.used <= row < end:
                    errors |= found
            parts.append(self.table.slice(self.used, end - self.used))
            count -= end - self.used
            self.used = end
        table = parts[0] if len(parts) == 1 else pa.concat_tables(parts, promote_options="default")
        return SegmentRows(table, errors)


def take_rows(segments: Iterator[Segment], rows: int) -> Iterator[Segment]:
    """Take segments until they hold `rows` rows."""
    while rows > 0 and (segment := next(segments, None)):
        rows -= len(segment.rows)
        yield segment


def take_tasks(parts: Iterator[list[SegmentPart]]) -> list[Any]:
    """Take the parts of one data set."""
    return list(islice(parts, TASKS_PER_DATASET))
