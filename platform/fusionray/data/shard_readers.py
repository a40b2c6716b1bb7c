"""Read segments of shards in their order: what readers have in common, and the one that needs no Ray.

Rows of other files replace those of damaged files, up to a limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from fusionray.data.segments import Segment
from fusionray.data.shard_files import SegmentRows, ShardFiles
from fusionray.errors import ShardCorrupt


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
