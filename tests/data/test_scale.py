"""What a worker does before its first row, with 100 million rows of two million people; no row is stored."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from fusionray.data.person_labels import LABELS_NAME
from fusionray.data.shards import ShardInfo, write_manifest
from tests.support.child_python import run_python
from tests.support.tiny_manifest import build_manifest

ROWS, PEOPLE, FILES = 100_000_000, 2_000_000, 10_000
FILE_BYTES = 10_000 * ROWS // FILES

# Imports come first: what they take does not depend on the rows.
START = """
import json, sys, time
from itertools import islice
import fusionray.training.run.entry
from fusionray.data.order import DataOrder, DataPosition, EpochPartition
from fusionray.data.person_labels import read_labels
from fusionray.data.shard_files import list_files
from fusionray.data.shards import check_shards, read_manifest

def read_memory(name):
    (line,) = [line for line in open("/proc/self/status") if line.startswith(name)]
    return int(line.split()[1]) / 1024

folder, before, started = sys.argv[1], read_memory("VmRSS"), time.process_time()
manifest = read_manifest(folder)
check_shards(folder, manifest, size=128)
labels = read_labels(folder, manifest)
files = list_files(folder, manifest, "train")
order = DataOrder(files.rows, 0, 8, 8192, stride=8)
# Resumed on eight ranks in mid-epoch, after six.
partition = EpochPartition(num_ranks=6, window_rows=8192, drawn=9_000_000, extra=2)
windows = list(islice(order.windows(DataPosition(epoch=2, partitions=(partition,)), 7), 2))
seconds = time.process_time() - started
print(json.dumps({
    "seconds": seconds,
    "mib": read_memory("VmHWM") - before,
    "rows": sum(len(segment.rows) for window in windows for segment in window.segments),
    "people": len(labels.hashes),
}))
"""


def write_set(folder: Path) -> None:
    """Write a set of shards whose files are holes."""
    shards = []
    for number in range(FILES):
        name = f"shard-train-{number:05d}.parquet"
        (folder / name).touch()
        os.truncate(folder / name, FILE_BYTES)
        shards.append(
            ShardInfo(
                file=name,
                split="train",
                rows=ROWS // FILES,
                identities=PEOPLE // FILES,
                bytes=FILE_BYTES,
                sha256=f"{number:064x}",
            )
        )
    hashes = np.random.default_rng(0).integers(0, 2**64, PEOPLE, np.uint64)
    np.save(folder / LABELS_NAME, np.unique(hashes))
    manifest = build_manifest(shards, 128)
    write_manifest(str(folder), manifest)


def test_a_hundred_million_rows_are_begun_in_seconds_and_little_memory(tmp_path: Path) -> None:
    write_set(tmp_path)
    found = json.loads(run_python("-c", START, str(tmp_path)))
    assert found["rows"] > 2 * 8000
    assert found["people"] == PEOPLE
    assert found["seconds"] < 5
    assert found["mib"] < 100
