from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import uuid
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fusionray.data.ray_data_reader import SEGMENTS_PER_TASK, RayDataReader
from fusionray.data.segment_source import SegmentPart, divide_segments
from fusionray.data.segments import Segment
from fusionray.data.shard_files import ShardFiles, list_files, read_rows, read_split
from fusionray.data.shard_readers import CorruptionTracker, LocalReader, ShardReader
from fusionray.data.shards import Manifest, SplitInfo, build_picture_row, write_shard
from fusionray.errors import DataTimeout, ShardCorrupt
from fusionray.hardware.processes import add_descendants, find_processes, list_processes, measure_cpu
from tests.faults.driver import wait_until
from tests.support.tiny_shards import flip_a_bit, name_person, write_tiny_shards


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Manifest]:
    folder = tmp_path_factory.mktemp("shards")
    return str(folder), write_tiny_shards(folder, people=16, pictures=8, shards=8)


def segment(file: int, *rows: int) -> Segment:
    return Segment(file, np.array(rows))


@pytest.mark.parametrize("rows", [[0], [9], [3, 4, 5], [2, 3, 8], [0, 9], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [4, 6, 7]])
def test_any_rows_of_a_file_are_read_and_no_others(tmp_path: Path, rows: list[int]) -> None:
    pq.write_table(pa.table({"value": list(range(10)), "other": ["x"] * 10}), tmp_path / "ten", row_group_size=3)
    with pq.ParquetFile(tmp_path / "ten") as file:
        table = read_rows(file, np.array(rows), ["value"])
    assert table.to_pydict() == {"value": rows}


@pytest.mark.parametrize("kind", [LocalReader, RayDataReader])
@pytest.mark.usefixtures("ray_session")
def test_readers_yield_the_segments_in_their_order(
    shards: tuple[str, Manifest], kind: type[LocalReader | RayDataReader]
) -> None:
    reader: ShardReader = kind(list_files(*shards, "train"))
    asked = [segment(3, 0, 1, 2), segment(0, 5), segment(7, 2, 9, 15), segment(3, 3), segment(2, 1, 4, 7, 10)]
    names = [table.column("identity").to_pylist() for table in reader.read(asked)]
    assert names == [
        [name_person(3)] * 3,
        [name_person(0)],
        [name_person(7), name_person(15), name_person(15)],
        [name_person(3)],
        [name_person(2), name_person(2), name_person(2), name_person(10)],
    ]


def test_regions_are_read_where_they_are_wanted_and_known(tmp_path: Path) -> None:
    manifest = write_tiny_shards(tmp_path, people=4, pictures=2, shards=2)
    for wanted in (False, True):
        (table,) = LocalReader(list_files(str(tmp_path), manifest, "train", with_regions=wanted)).read([segment(0, 1)])
        assert ("region" in table.column_names) is wanted
    # A file of a version before there were any.
    file = tmp_path / "shard-00000.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["region"]), file)
    (table,) = LocalReader(list_files(str(tmp_path), manifest, "train", with_regions=True)).read([segment(0, 1)])
    assert "region" not in table.column_names
    assert read_split(str(tmp_path), manifest, "train").column("region").null_count == 8


@pytest.mark.parametrize(
    ("kind", "damage"),
    [*((LocalReader, how) for how in ("missing", "truncated", "another", "one bit")), (RayDataReader, "one bit")],
)
@pytest.mark.usefixtures("ray_session")
def test_a_file_that_differs_from_the_manifest_is_reported(
    tmp_path: Path, kind: type[LocalReader | RayDataReader], damage: str
) -> None:
    manifest = write_tiny_shards(tmp_path, people=4, pictures=2, shards=2)
    file = tmp_path / "shard-00001.parquet"
    if damage != "another":
        damage_file(file, damage)
    else:
        file.write_bytes((tmp_path / "shard-00002.parquet").read_bytes())
        manifest = manifest.model_copy(
            update={"shards": [info.model_copy(update={"rows": 5}) for info in manifest.shards]}
        )
    reader: ShardReader = kind(list_files(str(tmp_path), manifest, "train"))
    with pytest.raises(ShardCorrupt, match=r"shard-00001\.parquet: .*run `fusionray prepare` again into") as caught:
        list(reader.read([segment(1, 0)]))
    assert "\n" not in str(caught.value)


def damage_file(file: Path, kind: str) -> None:
    if kind == "missing":
        file.unlink()
    elif kind == "truncated":
        file.write_bytes(file.read_bytes()[:-100])
    else:
        flip_a_bit(file)


@pytest.mark.parametrize(
    ("kind", "how"),
    [*((LocalReader, how) for how in ("missing", "truncated", "one bit")), (RayDataReader, "truncated")],
)
@pytest.mark.usefixtures("ray_session")
def test_rows_of_other_files_replace_those_of_a_damaged_file_up_to_a_limit(
    tmp_path: Path, kind: type[LocalReader | RayDataReader], how: str
) -> None:
    manifest = write_tiny_shards(tmp_path, people=6, pictures=4, shards=3, validation_people=0)
    files = list_files(str(tmp_path), manifest, "train")
    sound = dict(zip(files.names, read_all(LocalReader(files)), strict=True))
    damage_file(tmp_path / files.names[2], how)
    damage = CorruptionTracker(1)
    tables = read_all(kind(files, damage))
    assert [table.equals(sound[name]) for name, table in zip(files.names, tables, strict=True)] == [True, True, False]
    assert tables[2].equals(sound[files.names[0]]), "after the last file comes the first"
    assert list(damage.errors) == [files.names[2]]
    assert damage.replaced_rows == len(tables[2]) == 8
    (warning,) = damage.drain_warnings()
    assert files.names[2] in warning
    assert list(damage.drain_warnings()) == []
    damage_file(tmp_path / files.names[0], how)
    with pytest.raises(ShardCorrupt, match=rf"{files.names[0]}: .*max_damaged_files=1 are damaged"):
        read_all(kind(files, damage))


def read_all(reader: ShardReader) -> list[pa.Table]:
    """Read the whole of three files of 8 rows."""
    return list(reader.read(segment(number, *range(8)) for number in range(3)))


def test_a_shorter_file_replaces_rows_more_than_once(tmp_path: Path) -> None:
    manifest = write_tiny_shards(tmp_path, people=5, pictures=4, shards=2, validation_people=0)
    files = list_files(str(tmp_path), manifest, "train")
    assert files.rows == (12, 8)
    (short,) = LocalReader(files).read([segment(1, *range(8))])
    (tmp_path / files.names[0]).unlink()
    (table,) = LocalReader(files, CorruptionTracker(1)).read([segment(0, *range(12))])
    assert table.equals(pa.concat_tables([short, short.slice(0, 4)]))


@pytest.mark.parametrize("lost", [None, 0, 1])
def test_a_segment_that_tasks_share_has_the_rows_of_the_whole_one(tmp_path: Path, lost: int | None) -> None:
    manifest = write_tiny_shards(tmp_path, people=5, pictures=4, shards=2, validation_people=0)
    files = list_files(str(tmp_path), manifest, "train")
    assert files.rows == (12, 8)
    if lost is not None:
        (tmp_path / files.names[lost]).unlink()
    asked = [segment(0, *range(12)), segment(1, 0, 2, 3, 7), segment(0, 1)]
    tasks = list(divide_segments(asked, 5, 16))
    assert [sum(part.end - part.start for part in task) for task in tasks] == [5, 5, 5, 2]
    parts = [files.read_with_fallback(part.segment(), 1, part.start, part.end).table for task in tasks for part in task]
    assert pa.concat_tables(parts).equals(pa.concat_tables(LocalReader(files, CorruptionTracker(1)).read(asked)))


@pytest.mark.parametrize(("rows", "listed"), [([4], 0), ([4, 5, 6], 0), ([1, 9, 17, 25], 0), ([1, 9, 17, 24], 4)])
def test_a_part_lists_the_rows_of_its_segment_only_if_their_distances_differ(rows: list[int], listed: int) -> None:
    part = SegmentPart.of(segment(2, *rows), 0, 1)
    assert (0 if part.rows is None else len(part.rows)) == listed
    assert part.segment().rows.tolist() == rows


@pytest.mark.parametrize("max_damaged_files", [0, 1])
def test_no_further_files_are_tried_after_max_damaged_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_damaged_files: int
) -> None:
    manifest = write_tiny_shards(tmp_path, people=6, pictures=4, shards=3, validation_people=0)
    files = list_files(str(tmp_path), manifest, "train")
    for name in files.names:
        (tmp_path / name).unlink()
    asked: list[int] = []
    read = ShardFiles.read

    def count(self: ShardFiles, wanted: Segment) -> pa.Table:
        asked.append(wanted.file)
        return read(self, wanted)

    monkeypatch.setattr(ShardFiles, "read", count)
    with pytest.raises(ShardCorrupt, match=files.names[1]):
        list(LocalReader(files, CorruptionTracker(max_damaged_files)).read([segment(1, 0)]))
    assert asked == [1, 2][: max_damaged_files + 1]


@pytest.mark.parametrize("local_rows", [0, 1])
@pytest.mark.usefixtures("ray_session")
def test_storage_that_hangs_raises_a_timeout(tmp_path: Path, local_rows: int) -> None:
    manifest = write_tiny_shards(tmp_path, people=4, pictures=2, shards=2)
    file = tmp_path / "shard-00001.parquet"
    file.unlink()
    os.mkfifo(file)  # whoever opens it waits for a writer
    reader = RayDataReader(list_files(str(tmp_path), manifest, "train"), timeout_seconds=0.5, local_rows=local_rows)
    with pytest.raises(DataTimeout, match=r"no rows came for 0\.5 s; check the storage"):
        list(reader.read([segment(1, 0)]))
    # Whoever still waits in this process goes on.
    with contextlib.suppress(OSError):
        os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))


@dataclass(frozen=True)
class LateFiles(ShardFiles):
    """Files with which a process of Ray takes two seconds to start, as on a busy node."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        if not hasattr(sys, "is_late"):
            sys.is_late = True  # type: ignore[attr-defined]
            time.sleep(2)
        self.__dict__.update(state)


@pytest.mark.usefixtures("ray_session")
def test_a_reader_that_starts_late_is_no_storage_that_hangs(shards: tuple[str, Manifest]) -> None:
    files = list_files(*shards, "train")
    late = LateFiles(**{field.name: getattr(files, field.name) for field in fields(files)})
    reader = RayDataReader(late, timeout_seconds=1.5)
    (table,) = reader.read([segment(1, 0)])
    assert table.num_rows == next(LocalReader(files).read([segment(1, 0)])).num_rows
    reader.close()


@dataclass(frozen=True)
class CountedFiles(ShardFiles):
    """Files that leave a file in `log` for each segment that is read."""

    log: str = ""

    def read(self, segment: Segment) -> pa.Table:
        Path(self.log, uuid.uuid4().hex).touch()
        return super().read(segment)


@pytest.mark.usefixtures("ray_session")
def test_ray_data_reads_a_bounded_number_of_segments_ahead_and_then_rests(
    shards: tuple[str, Manifest], tmp_path: Path
) -> None:
    files = list_files(*shards, "train")
    counted = CountedFiles(**{field.name: getattr(files, field.name) for field in fields(files)}, log=str(tmp_path))
    asked = (segment(number % 8, 0) for number in range(100_000))
    with contextlib.closing(RayDataReader(counted).read(asked)) as tables:  # type: ignore[type-var]
        next(tables)
        read = 0
        while read != (read := len(list(tmp_path.iterdir()))):
            time.sleep(1)
        assert read <= 8 * SEGMENTS_PER_TASK
        # An executor that does not rest takes two thirds of a core.
        before = measure_cpu(find_coordinators())
        time.sleep(3)
        assert measure_cpu(find_coordinators()) - before < 0.6
    wait_until("the end of the executor", lambda: not find_coordinators())


@dataclass(frozen=True)
class SlowFiles(ShardFiles):
    """Files that take their time, so that a task can be met while it reads."""

    def read(self, segment: Segment) -> pa.Table:
        time.sleep(0.02)
        return super().read(segment)


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize("title", ["ray::SplitCoordinator", "ray::ReadSegmentSource"])
@pytest.mark.usefixtures("ray_session")
def test_a_killed_process_of_ray_data_is_replaced_and_the_rows_are_the_same(
    shards: tuple[str, Manifest], title: str
) -> None:
    files = list_files(*shards, "train")
    slow = SlowFiles(**{field.name: getattr(files, field.name) for field in fields(files)})
    asked = [segment(number % 8, *range(number % 7 + 1)) for number in range(8 * SEGMENTS_PER_TASK)]
    with contextlib.closing(RayDataReader(slow).read(asked)) as tables:  # type: ignore[type-var]
        for number, (table, expected) in enumerate(zip(tables, LocalReader(files).read(asked), strict=True)):
            assert table.equals(expected), number
            if number == SEGMENTS_PER_TASK:
                wait_until("a process to kill", lambda: bool(find_own(title)))
                os.kill(find_own(title)[0], signal.SIGKILL)


def find_coordinators() -> list[int]:
    """Find the processes of executors that this test session has started."""
    return find_own("ray::SplitCoordinator")


def find_own(title: str) -> list[int]:
    """Find processes of this test session by their titles."""
    return [*add_descendants({os.getpid()}, list_processes()).intersection(find_processes(title))]


def test_a_split_is_read_in_a_fixed_order_and_an_empty_one_is_refused(tmp_path: Path) -> None:
    manifest = write_tiny_shards(tmp_path, people=4, pictures=2, shards=2, validation_people=0)
    table = read_split(str(tmp_path), manifest, "train", ["source"])
    assert table.column("source").to_pylist() == ["0/0", "0/1", "2/0", "2/1", "1/0", "1/1", "3/0", "3/1"]
    with pytest.raises(ShardCorrupt, match="the validation split is empty"):
        read_split(str(tmp_path), manifest, "validation")


@pytest.mark.parametrize("how", ["missing", "truncated", "one bit"])
def test_a_damaged_file_of_a_split_is_named(tmp_path: Path, how: str) -> None:
    manifest = write_tiny_shards(tmp_path, people=4, pictures=2, shards=2)
    name = manifest.files("train")[0]
    damage_file(tmp_path / name, how)
    with pytest.raises(ShardCorrupt, match=rf"{name}: cannot be read \(.*\); check the storage"):
        read_split(str(tmp_path), manifest, "train")


def test_some_rows_of_a_split_of_pictures_are_of_all_of_its_folders(tmp_path: Path) -> None:
    shards = []
    for number in range(6):
        kind = "contents" if number < 4 else "styles"
        rows = [build_picture_row(b"x", f"{kind}/{number}-{row:02d}", 8, 8) for row in range(20)]
        shards.append(write_shard(str(tmp_path), f"shard-validation-{number:05d}.parquet", "validation", rows))
    faces = write_tiny_shards(tmp_path / "faces")
    splits = {"validation": SplitInfo(rows=120, identities=120)}
    manifest = faces.model_copy(update={"task": "pictures", "shards": shards, "splits": splits})
    for limit, least in ((10, 5), (30, 10), (60, 15), (119, 39), (500, 40)):
        found = read_split(str(tmp_path), manifest, "validation", ["source"], limit).column("source").to_pylist()
        assert len(set(found)) == len(found) == min(limit, 120)
        assert sum(name.startswith("styles/") for name in found) >= least
