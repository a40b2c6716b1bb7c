"""Read rows from the shards of a split: a whole split, or segments of its files.

Segments of a file that is missing, damaged or different from its entry in the manifest raise ShardCorrupt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from fusionray.data.pairs import TRUTH_COLUMNS
from fusionray.data.segments import Segment
from fusionray.data.shards import GROUP_COLUMNS, REGION_COLUMN, Manifest, Split
from fusionray.errors import ShardCorrupt
from fusionray.shard_task import ShardTask
from fusionray.storage import filesystem as storage
from fusionray.storage.retries import ask_again


class SegmentRows(NamedTuple):
    """The rows of a segment, and the errors of the damaged files that were tried first, by the name of the file."""

    table: pa.Table
    errors: dict[str, str]


@dataclass(frozen=True)
class ShardFiles:
    """The files of a split in their fixed order, to which `Segment.file` refers.

    `rows`: rows of each file by the manifest; `row_bytes`: what a row takes in a file, on average; `with_regions`: read
    the regions too, from files that have them.
    """

    folder: str
    names: tuple[str, ...]
    rows: tuple[int, ...]
    row_bytes: int
    synthetic: bool
    with_regions: bool = False
    task: ShardTask = "faces"

    def read(self, segment: Segment) -> pa.Table:
        """Read the columns of a segment that training needs.

        Raises: ShardCorrupt if the file is missing or damaged, or has another number of rows than in the manifest.
        """
        columns = ["image", GROUP_COLUMNS[self.task], *(TRUTH_COLUMNS if self.synthetic else ())]

        def read(file: pq.ParquetFile) -> pa.Table:
            has_regions = self.with_regions and REGION_COLUMN in file.schema_arrow.names
            return read_rows(file, segment.rows, [*columns, *([REGION_COLUMN] if has_regions else ())])

        return read_checked(self.folder, self.names[segment.file], self.rows[segment.file], read)

    def read_with_fallback(
        self, segment: Segment, max_damaged_files: int, start: int = 0, end: int | None = None
    ) -> SegmentRows:
        """Read rows `start` to `end` - 1 of a segment; if its file is damaged, those of the segment that replaces it:
        as many rows of the next file that is not damaged.

        The replacing rows depend only on which files are damaged, so that every reader chooses the same ones.

        Raises: ShardCorrupt if more than `max_damaged_files` files in a row are damaged, without trying further files.
        """
        errors: dict[str, str] = {}
        wanted = len(segment.rows)
        for step in range(min(max_damaged_files + 1, len(self.names))):
            number = (segment.file + step) % len(self.names)
            rows = segment.rows
            if step:
                first = max(0, min(int(rows[0]), self.rows[number] - wanted))
                # A shorter file gives its rows more than once.
                rows = first + np.arange(wanted) % self.rows[number]
            rows = rows[start:end]
            unique, places = np.unique(rows, return_inverse=True)
            try:
                table = self.read(Segment(number, unique))
            except ShardCorrupt as error:
                errors[self.names[number]] = str(error)
                continue
            return SegmentRows(table if np.array_equal(unique, rows) else table.take(places), errors)
        raise ShardCorrupt(next(iter(errors.values())))


def read_checked(folder: str, name: str, promised_rows: int, read: Callable[[pq.ParquetFile], pa.Table]) -> pa.Table:
    """Read a shard file with `read`; checksums of its pages are verified, and a store that is busy is asked again.

    Raises: ShardCorrupt if the file is missing or damaged, or has another number of rows than promised.
    """
    filesystem, root = storage.open_filesystem(folder)
    # Requests to an object store are joined, since each waits; on a disk, joining only copies.
    options = {"page_checksum_verification": True, "pre_buffer": not isinstance(filesystem, fs.LocalFileSystem)}

    def read_once() -> pa.Table:
        with pq.ParquetFile(f"{root}/{name}", filesystem=filesystem, **options) as file:
            if file.metadata.num_rows != promised_rows:
                raise ShardCorrupt(
                    f"{folder}/{name}: holds {file.metadata.num_rows} rows, but the manifest says {promised_rows}; "
                    f"delete the file, and run `fusionray prepare` again into {folder}"
                )
            return read(file)

    try:
        return ask_again(filesystem, read_once)
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise ShardCorrupt(
            f"{folder}/{name}: cannot be read ({reason}); check the storage, or delete the file, and run "
            f"`fusionray prepare` again into {folder}"
        ) from None


def read_rows(file: pq.ParquetFile, rows: Any, columns: Sequence[str]) -> pa.Table:
    """Read ascending rows of a file; only the row groups that hold them are read."""
    metadata = file.metadata
    ends = np.cumsum([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)])
    groups = np.unique(np.searchsorted(ends, rows, side="right"))
    # Groups without such a row are skipped: compute where each row is in what is read.
    sizes = np.diff(ends, prepend=0)[groups]
    starts = (ends - np.diff(ends, prepend=0))[groups]
    inside = np.searchsorted(groups, np.searchsorted(ends, rows, side="right"))
    places = rows - starts[inside] + (np.cumsum(sizes) - sizes)[inside]
    # One thread: readers already run in parallel on the same cores.
    table = file.read_row_groups(groups.tolist(), columns=list(columns), use_threads=False)
    if places[-1] - places[0] == len(places) - 1:
        return table.slice(places[0], len(places))
    return table.take(pa.array(places))


def list_files(folder: str, manifest: Manifest, split: Split, *, with_regions: bool = False) -> ShardFiles:
    """List the files of a split with their numbers of rows by the manifest."""
    infos = {shard.file: shard for shard in manifest.shards}
    shards = [infos[name] for name in manifest.files(split)]
    rows = tuple(shard.rows for shard in shards)
    row_bytes = sum(shard.bytes for shard in shards) // max(1, sum(rows))
    return ShardFiles(
        folder,
        tuple(shard.file for shard in shards),
        rows,
        max(1, row_bytes),
        manifest.synthetic,
        with_regions,
        manifest.task,
    )


def read_split(
    folder: str, manifest: Manifest, split: Split, columns: Sequence[str] | None = None, limit: int | None = None
) -> pa.Table:
    """Read a split into memory, in a fixed order, without Ray: all of it, or `limit` rows.

    These are the first rows of faces, so that people stay whole; but pictures from all over the split, whose rows are
    sorted by path: the first ones may all be of one folder.

    Raises: ShardCorrupt if the split is empty, or a file cannot be read.
    """
    files = manifest.files(split) if limit is None else choose_files(manifest, split, limit)
    rows = {shard.file: shard.rows for shard in manifest.shards}
    wanted = list(columns) if columns else None
    tables = [read_checked(folder, file, rows[file], lambda opened: opened.read(wanted)) for file in files]
    if not tables:
        raise ShardCorrupt(f"{folder}: the {split} split is empty; prepare with more people or another fraction")
    # Older files may lack a column: its values are null for their rows.
    table = pa.concat_tables(tables, promote_options="default")
    if limit is not None and manifest.task == "pictures" and limit < len(table):
        return table.take(pa.array(np.arange(limit) * len(table) // max(1, limit)))
    return table.slice(0, limit)


def choose_files(manifest: Manifest, split: Split, limit: int) -> list[str]:
    """Choose the fewest files that hold `limit` rows of a split: the first; of pictures, at least two, far apart."""
    rows = {shard.file: shard.rows for shard in manifest.shards}
    files, is_spread = manifest.files(split), manifest.task == "pictures"
    for count in range(2 if is_spread else 1, len(files)):
        places = [place * (len(files) - 1) // (count - 1) if is_spread else place for place in range(count)]
        chosen = [files[place] for place in places]
        if sum(rows[file] for file in chosen) >= limit:
            return chosen
    return files
