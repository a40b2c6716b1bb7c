"""Rows out of shards: all of a split at once, or piece by piece in a promised order, with Ray or without."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fusionray.data.order import Segment
from fusionray.data.pairs import TRUTH_COLUMNS
from fusionray.data.shards import GROUP_COLUMNS, REGION_COLUMN, Manifest, Split
from fusionray.environment import WORKER_VARIABLE
from fusionray.errors import DataTimeout, ShardCorrupt
from fusionray.shard_task import ShardTask
from fusionray.storage import filesystem as storage

# A reader needs nothing of what a training worker imports ahead (training/faults/preload.py).
READER_ENVIRONMENT = {"env_vars": {WORKER_VARIABLE: "0"}}


class ShardReader(Protocol):
    """Whatever reads segments: one table for each, in their order."""

    def read(self, segments: Iterable[Segment]) -> Iterator[pa.Table]:
        """Read segments as they are asked for.

        Raises: ShardCorrupt if more files than are allowed do not hold what the manifest promises; DataTimeout.
        """
        ...


class Reading(NamedTuple):
    """The rows of a segment, and what is wrong with each file that was to give them, by its name."""

    table: pa.Table
    complaints: dict[str, str]


class CorruptionTracker:
    """What a reader met of damaged files; `max_files` of them are allowed, rows of others standing in for theirs."""

    def __init__(self, max_files: int = 0) -> None:
        self.max_files = max_files
        self.rows = 0
        self.complaints: dict[str, str] = {}
        # Read in one thread, told of in another.
        self.news: deque[str] = deque()

    def note(self, reading: Reading) -> pa.Table:
        """Count what was wrong, and pass the rows on.

        Raises: ShardCorrupt if that is more than is allowed.
        """
        for name, complaint in reading.complaints.items():
            if name in self.complaints:
                continue
            if len(self.complaints) >= self.max_files:
                limit = f" (more files than data.max_damaged_files={self.max_files} are damaged)"
                raise ShardCorrupt(f"{complaint}{limit if self.max_files else ''}")
            self.complaints[name] = complaint
            self.news.append(complaint)
        self.rows += len(reading.table) if reading.complaints else 0
        return reading.table

    def drain_warnings(self) -> Iterator[str]:
        """Take what was found since the last call."""
        while self.news:
            yield self.news.popleft()


@dataclass(frozen=True)
class ShardFiles:
    """The files of a split in their fixed order: what a segment's number of a file refers to.

    `with_regions`: read where the faces are, from files that know it.
    """

    folder: str
    names: tuple[str, ...]
    rows: tuple[int, ...]
    synthetic: bool
    with_regions: bool = False
    task: ShardTask = "faces"

    def read(self, segment: Segment) -> pa.Table:
        """Read what learning needs of a segment.

        Raises: ShardCorrupt if the file is missing, damaged, or has another number of rows than promised.
        """
        filesystem, root = storage.open_filesystem(self.folder)
        name, promised = self.names[segment.file], self.rows[segment.file]
        columns = ["image", GROUP_COLUMNS[self.task], *(TRUTH_COLUMNS if self.synthetic else ())]
        try:
            with pq.ParquetFile(f"{root}/{name}", filesystem=filesystem, page_checksum_verification=True) as file:
                if file.metadata.num_rows != promised:
                    raise ShardCorrupt(
                        f"{self.folder}/{name}: holds {file.metadata.num_rows} rows, not {promised} as the manifest "
                        f"promises; run `fusionray prepare` again into {self.folder}"
                    )
                if self.with_regions and REGION_COLUMN in file.schema_arrow.names:
                    columns.append(REGION_COLUMN)
                return read_rows(file, segment.rows, columns)
        except (OSError, pa.ArrowException) as error:
            reason = " ".join(str(error).split())
            raise ShardCorrupt(
                f"{self.folder}/{name}: cannot be read ({reason}); "
                f"check the storage, or run `fusionray prepare` again into {self.folder}"
            ) from None

    def read_with_fallback(self, segment: Segment, max_damaged: int) -> Reading:
        """Read a segment or, where its file is damaged, as many rows of the next one that is not.

        Which rows those are depends on what is damaged alone: every reader finds the same.

        Raises: ShardCorrupt where more than `max_damaged` files in a row cannot be read: storage that is gone is not
        asked for every one of them.
        """
        complaints: dict[str, str] = {}
        wanted = len(segment.rows)
        for step in range(min(max_damaged + 1, len(self.names))):
            number = (segment.file + step) % len(self.names)
            rows = segment.rows
            if step:
                first = max(0, min(int(rows[0]), self.rows[number] - wanted))
                rows = np.arange(first, min(first + wanted, self.rows[number]))
            try:
                table = self.read(Segment(number, rows))
            except ShardCorrupt as error:
                complaints[self.names[number]] = str(error)
                continue
            # A shorter file stands in more than once.
            return Reading(table if len(table) == wanted else table.take(np.arange(wanted) % len(table)), complaints)
        raise ShardCorrupt(next(iter(complaints.values())))


def read_rows(file: pq.ParquetFile, rows: Any, columns: Sequence[str]) -> pa.Table:
    """Read ascending rows of a file, and no more row groups than hold them."""
    metadata = file.metadata
    ends = np.cumsum([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)])
    groups = np.unique(np.searchsorted(ends, rows, side="right"))
    # The groups in between that hold no such row are left out: count the rows before each of those that are read.
    sizes = np.diff(ends, prepend=0)[groups]
    starts = (ends - np.diff(ends, prepend=0))[groups]
    inside = np.searchsorted(groups, np.searchsorted(ends, rows, side="right"))
    places = rows - starts[inside] + (np.cumsum(sizes) - sizes)[inside]
    # Readers run beside each other already; threads of their own would only wait for the same cores.
    table = file.read_row_groups(groups.tolist(), columns=list(columns), use_threads=False)
    if places[-1] - places[0] == len(places) - 1:
        return table.slice(places[0], len(places))
    return table.take(pa.array(places))


@dataclass(frozen=True)
class LocalReader:
    """Read in the calling thread, without Ray."""

    files: ShardFiles
    damage: CorruptionTracker = field(default_factory=CorruptionTracker)

    def read(self, segments: Iterable[Segment]) -> Iterator[pa.Table]:
        """Read segments as they are asked for."""
        return (self.damage.note(self.files.read_with_fallback(segment, self.damage.max_files)) for segment in segments)


@dataclass
class RayReader:
    """Read in a process of its own on this node, `ahead` segments at a time.

    A Ray Data pipeline cannot resume at a row, ends with every epoch, and its executor takes ten times the time of
    this process that handing over a call does, from the threads that decode.
    """

    files: ShardFiles
    damage: CorruptionTracker = field(default_factory=CorruptionTracker)
    ahead: int = 2
    timeout_seconds: float = 120.0
    process: Any = None

    def start(self) -> None:
        """Start the process; `read` does it where nobody has."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        # Without a CPU of its own: a reader that waits for one which the workers hold would wait for ever.
        options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": here}
        remote = ray.remote(runtime_env=READER_ENVIRONMENT, **options)(SegmentReader)
        self.process = remote.remote(self.files, self.damage.max_files)

    def close(self) -> None:
        """End the process; one that hangs would not end by itself."""
        import ray

        if self.process is not None:
            ray.kill(self.process)
            self.process = None

    def read(self, segments: Iterable[Segment]) -> Iterator[pa.Table]:
        """Read segments, a few of them before they are asked for."""
        if self.process is None:
            self.start()
        pending: deque[Any] = deque()
        for segment in segments:
            pending.append(self.process.read.remote(segment))
            if len(pending) > self.ahead:
                yield self.fetch(pending.popleft())
        while pending:
            yield self.fetch(pending.popleft())

    def fetch(self, reference: Any) -> pa.Table:
        """Wait for the rows of a segment.

        Raises: ShardCorrupt as its task raised it, DataTimeout.
        """
        import ray
        import ray.exceptions

        try:
            return self.damage.note(ray.get(reference, timeout=self.timeout_seconds))
        except ray.exceptions.GetTimeoutError:
            raise DataTimeout(
                f"{self.files.folder}: no rows came for {self.timeout_seconds:g} s; check the storage, or raise "
                "data.timeout_seconds if it is only slow"
            ) from None
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ShardCorrupt):
                raise error.cause from None
            raise


class SegmentReader:
    """The reading process."""

    def __init__(self, files: ShardFiles, max_damaged: int) -> None:
        self.files = files
        self.max_damaged = max_damaged

    def read(self, segment: Segment) -> Reading:
        """Read a segment; what a slice leaves out does not travel."""
        return self.files.read_with_fallback(segment, self.max_damaged)


def list_files(folder: str, manifest: Manifest, split: Split, *, with_regions: bool = False) -> ShardFiles:
    """List the files of a split with what the manifest promises of them."""
    rows = {shard.file: shard.rows for shard in manifest.shards}
    names = manifest.files(split)
    return ShardFiles(
        folder, tuple(names), tuple(rows[name] for name in names), manifest.synthetic, with_regions, manifest.task
    )


def read_split(folder: str, manifest: Manifest, split: Split, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a split without Ray, in a fixed order: for evaluation, and for lists of people."""
    filesystem, root = storage.open_filesystem(folder)
    tables = [
        pq.read_table(f"{root}/{file}", filesystem=filesystem, columns=list(columns) if columns else None)
        for file in manifest.files(split)
    ]
    if not tables:
        raise ShardCorrupt(f"{folder}: the {split} split is empty; prepare with more people or another fraction")
    # Files of one set may be of two versions: a column that one of them lacks is null there.
    return pa.concat_tables(tables, promote_options="default")


def list_people(folder: str, manifest: Manifest, split: Split) -> list[str]:
    """Name the people of a split in a fixed order, none in shards of pictures; the index is the person's label."""
    if manifest.task == "pictures":
        return []
    return sorted(set(read_split(folder, manifest, split, ["identity"]).column("identity").to_pylist()))
