"""Read segments of shards in their order, in the calling thread or in a Ray actor.

Rows of other files replace those of damaged files, up to a limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from fusionray.data.order import Segment
from fusionray.data.shard_files import SegmentRows, ShardFiles
from fusionray.environment import WORKER_VARIABLE
from fusionray.errors import DataTimeout, ShardCorrupt

# How long a process of Ray may take to start, be the machine ever so busy; it says nothing of the storage.
START_SECONDS = 120.0
# The actor needs none of the modules that training workers preload (training/faults/preload.py).
READER_ENVIRONMENT = {"env_vars": {WORKER_VARIABLE: "0"}}


class ShardReader(Protocol):
    """Reads segments: yields one table for each, in their order."""

    def read(self, segments: Iterable[Segment]) -> Iterator[pa.Table]:
        """Read segments lazily.

        Raises: ShardCorrupt if more files than allowed are damaged; DataTimeout.
        """
        ...


class CorruptionTracker:
    """Count damaged files and the rows that replace theirs; more than `max_damaged_files` damaged files are an error.

    `errors`: the first error by the name of the file; `replaced_rows`: rows that came from other files.
    """

    def __init__(self, max_damaged_files: int = 0) -> None:
        self.max_damaged_files = max_damaged_files
        self.replaced_rows = 0
        self.errors: dict[str, str] = {}
        # One thread reads, another one logs.
        self.pending_warnings: deque[str] = deque()

    def record(self, segment_rows: SegmentRows) -> pa.Table:
        """Count the errors of a segment and return its rows.

        Raises: ShardCorrupt if more than `max_damaged_files` files are damaged.
        """
        for name, error in segment_rows.errors.items():
            if name in self.errors:
                continue
            if len(self.errors) >= self.max_damaged_files:
                limit = f" (more files than data.max_damaged_files={self.max_damaged_files} are damaged)"
                raise ShardCorrupt(f"{error}{limit if self.max_damaged_files else ''}")
            self.errors[name] = error
            self.pending_warnings.append(error)
        self.replaced_rows += len(segment_rows.table) if segment_rows.errors else 0
        return segment_rows.table

    def drain_warnings(self) -> Iterator[str]:
        """Yield the errors that were found since the last call."""
        while self.pending_warnings:
            yield self.pending_warnings.popleft()


@dataclass(frozen=True)
class LocalReader:
    """Read in the calling thread, without Ray."""

    files: ShardFiles
    corruption: CorruptionTracker = field(default_factory=CorruptionTracker)

    def read(self, segments: Iterable[Segment]) -> Iterator[pa.Table]:
        """Read segments lazily; see ShardReader."""
        return (
            self.corruption.record(self.files.read_with_fallback(segment, self.corruption.max_damaged_files))
            for segment in segments
        )


@dataclass
class RayReader:
    """Read in a Ray actor on this node, `prefetch_segments` segments ahead.

    Not a Ray Data pipeline: it cannot resume at a row, it ends with every epoch, and its executor takes ten times the
    CPU time of an actor call from the threads that decode.
    """

    files: ShardFiles
    corruption: CorruptionTracker = field(default_factory=CorruptionTracker)
    prefetch_segments: int = 2
    timeout_seconds: float = 120.0
    actor: Any = None

    def start(self) -> None:
        """Start the actor; otherwise `read` starts it."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        # No CPU: the workers may hold all of them, and the actor would never start.
        options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": here}
        remote = ray.remote(runtime_env=READER_ENVIRONMENT, **options)(ShardReaderActor)
        self.actor = remote.remote(self.files, self.corruption.max_damaged_files)

    def close(self) -> None:
        """Kill the actor: one that hangs on the storage would not end by itself."""
        import ray

        if self.actor is not None:
            ray.kill(self.actor)
            self.actor = None

    def read(self, segments: Iterable[Segment]) -> Iterator[pa.Table]:
        """Read segments, `prefetch_segments` of them ahead; see ShardReader.

        Raises: ShardCorrupt, DataTimeout if the actor does not start or no rows come in time.
        """
        if self.actor is None:
            self.start()
        self.wait_for_start()
        pending: deque[Any] = deque()
        for segment in segments:
            pending.append(self.actor.read.remote(segment))
            if len(pending) > self.prefetch_segments:
                yield self.fetch(pending.popleft())
        while pending:
            yield self.fetch(pending.popleft())

    def wait_for_start(self) -> None:
        """Wait until the actor's process runs, which is no part of the time that the storage may take.

        Raises: DataTimeout.
        """
        import ray
        import ray.exceptions

        try:
            ray.get(self.actor.__ray_ready__.remote(), timeout=START_SECONDS)
        except ray.exceptions.GetTimeoutError:
            raise DataTimeout(
                f"{self.files.folder}: the process that reads the shards did not start within {START_SECONDS:g} s; "
                "check the load and the free memory of the node"
            ) from None

    def fetch(self, reference: Any) -> pa.Table:
        """Wait for the rows of a segment.

        Raises: ShardCorrupt, DataTimeout after `timeout_seconds`.
        """
        import ray
        import ray.exceptions

        try:
            return self.corruption.record(ray.get(reference, timeout=self.timeout_seconds))
        except ray.exceptions.GetTimeoutError:
            raise DataTimeout(
                f"{self.files.folder}: no rows came for {self.timeout_seconds:g} s; check the storage, or raise "
                "data.timeout_seconds if it is only slow"
            ) from None
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ShardCorrupt):
                raise error.cause from None
            raise


class ShardReaderActor:
    """The actor that reads."""

    def __init__(self, files: ShardFiles, max_damaged_files: int) -> None:
        self.files = files
        self.max_damaged_files = max_damaged_files

    def read(self, segment: Segment) -> SegmentRows:
        """Read a segment. Ray sends only the rows of the slice."""
        return self.files.read_with_fallback(segment, self.max_damaged_files)
