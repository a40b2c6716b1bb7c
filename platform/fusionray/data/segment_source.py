"""Segments of shards as a data source of Ray Data: a task reads some segments, and its blocks are their rows in order.

What is damaged travels with the rows, in the metadata of their schema. An exception in a task would end the execution,
and with it the blocks before it that nobody has taken yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import cv2
import numpy as np
import pyarrow as pa
import ray
from numpy.typing import NDArray
from ray.data import Datasource
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask
from ray.util import get_node_ip_address

from fusionray.data.crop_decoding import allocate_scratch_image, decode_crop, decode_region
from fusionray.data.pairs import EncodedCrop
from fusionray.data.segments import Segment
from fusionray.data.shard_files import ShardFiles
from fusionray.data.shards import GROUP_COLUMNS, REGION_COLUMN
from fusionray.errors import ShardCorrupt

HEADER = b"fusionray.block"
# Ray Data leaves out blocks without rows.
NO_ROWS = pa.table({"no rows": [0]})


class BlockHeader(NamedTuple):
    """What a block holds beside its rows.

    `task`: number of its task in the data set; `rows`; `errors`: (first row, errors by the name of the file) of each
    segment that has a damaged file; `failed`: why the rows after these cannot be read; `node`: address of the node that
    read them.
    """

    task: int
    rows: int
    node: str = ""
    errors: Sequence[tuple[int, dict[str, str]]] = ()
    failed: str | None = None


class SegmentPart(NamedTuple):
    """Rows `start` to `end` - 1 of a segment, which is stored as `file`, its first row, the distance of two rows, and
    all rows if their distances differ.
    """

    file: int
    first: int
    step: int
    length: int
    rows: NDArray[np.int64] | None
    start: int
    end: int

    @classmethod
    def of(cls, segment: Segment, start: int, end: int) -> SegmentPart:
        """Take a part of a segment, whose rows ascend."""
        first, length = int(segment.rows[0]), len(segment.rows)
        step = int(segment.rows[1]) - first if length > 1 else 1
        regular = np.array_equal(segment.rows, first + step * np.arange(length))
        return cls(segment.file, first, step, length, None if regular else segment.rows, start, end)

    def segment(self) -> Segment:
        """Return the whole segment."""
        return Segment(self.file, self.first + self.step * np.arange(self.length) if self.rows is None else self.rows)


@dataclass(frozen=True)
class ReadSegments:
    """A read task: read parts of segments as one block, and decode their crops if `decode_size` gives their pixels.

    `files`: a reference to the ShardFiles. Without parts, the task only shows that a process runs.
    """

    files: Any
    number: int
    parts: Sequence[SegmentPart]
    max_damaged_files: int
    decode_size: int | None = None

    def __call__(self) -> Iterator[pa.Table]:
        """Yield the block; it ends before a segment that cannot be read or decoded."""
        files: ShardFiles = ray.get(self.files)
        tables: list[pa.Table] = []
        errors: list[tuple[int, dict[str, str]]] = []
        failed = None
        try:
            for part in self.parts:
                table, found = files.read_with_fallback(part.segment(), self.max_damaged_files, part.start, part.end)
                if found:
                    errors.append((sum(map(len, tables)), found))
                tables.append(decode_table(table, files, self.decode_size) if self.decode_size else table)
        except ShardCorrupt as error:
            failed = str(error)
        header = BlockHeader(self.number, sum(map(len, tables)), get_node_ip_address(), errors, failed)
        # Older files may lack a column: its values are null for their rows.
        block = pa.concat_tables(tables, promote_options="default") if tables else NO_ROWS
        yield block.replace_schema_metadata({HEADER: json.dumps(header).encode()})


class SegmentSource(Datasource):  # type: ignore[misc]  # Ray Data has no types
    """A data set whose tasks are given, in the order of their blocks."""

    def __init__(self, tasks: Sequence[ReadSegments]) -> None:
        super().__init__()
        self.tasks = tasks

    def estimate_inmemory_data_size(self) -> int | None:
        """Return None: the number of blocks is that of the tasks."""
        return None

    def get_read_tasks(self, *_: Any, **__: Any) -> list[ReadTask]:
        """List the tasks, however many Ray Data asks for."""
        unknown = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, task_exec_stats=None)
        return [ReadTask(task, unknown) for task in self.tasks]


def read_header(block: pa.Table) -> BlockHeader:
    """Read the header of a block."""
    return BlockHeader(*json.loads(block.schema.metadata[HEADER]))


def decode_table(table: pa.Table, files: ShardFiles, size: int) -> pa.Table:
    """Replace the encoded crops of a table by their pixels, and regions too: uint8 planes [3,S,S] and [S,S] as bytes.

    Raises: ShardCorrupt naming the person of a crop that cannot be decoded or has another size.
    """
    names = table.column(GROUP_COLUMNS[files.task]).to_pylist()
    planes_N3SS = np.empty((len(table), 3, size, size), np.uint8)
    scratch_SS3 = allocate_scratch_image(size)
    for planes_3SS, image, name in zip(planes_N3SS, read_values(table, "image"), names, strict=True):
        cv2.split(decode_crop(EncodedCrop(image, name), scratch_SS3), list(planes_3SS))
    columns = {"image": planes_N3SS}
    if REGION_COLUMN in table.column_names and not table.column(REGION_COLUMN).null_count:
        regions = zip(read_values(table, REGION_COLUMN), names, strict=True)
        columns[REGION_COLUMN] = np.stack([decode_region(region, size, name) for region, name in regions])
    for column, values in columns.items():
        table = table.set_column(table.column_names.index(column), column, build_binary_array(values))
    return table


def read_values(table: pa.Table, column: str) -> Iterable[memoryview]:
    """Read the values of a binary column without copies."""
    return (memoryview(value.as_buffer()) for value in table.column(column))


def build_binary_array(values: NDArray[np.uint8]) -> pa.Array:
    """Build a binary array whose values are the rows of a contiguous array, without a copy."""
    width = values[0].nbytes
    offsets = np.arange(0, (len(values) + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(values)])


def divide_segments(segments: Iterable[Segment], rows: int, most: int) -> Iterator[list[SegmentPart]]:
    """Divide segments among tasks of at most `rows` rows, of at most `most` segments each."""
    task: list[SegmentPart] = []
    free = rows
    for segment in segments:
        start = 0
        while start < len(segment.rows):
            end = min(start + free, len(segment.rows))
            task.append(SegmentPart.of(segment, start, end))
            free -= end - start
            start = end
            if not free or len(task) == most:
                yield task
                task, free = [], rows
    if task:
        yield task
