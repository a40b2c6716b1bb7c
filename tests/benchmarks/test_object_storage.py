from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from fusionray.benchmarks.train.object_storage import serve_folder
from fusionray.data.ray_data_reader import RayDataReader
from fusionray.data.segments import Segment
from fusionray.data.shard_files import list_files
from fusionray.data.shard_readers import LocalReader
from fusionray.errors import ShardCorrupt
from tests.support.tiny_shards import write_tiny_shards


@pytest.mark.slow(seconds=20)
@pytest.mark.usefixtures("ray_session")
def test_shards_are_read_from_an_s3_server_as_from_a_folder(tmp_path: Path) -> None:
    files = list_files(str(tmp_path), write_tiny_shards(tmp_path, people=8, pictures=8), "train")
    asked = [Segment(number % 4, np.arange(number % 5, 12)) for number in range(24)]
    with serve_folder(str(tmp_path), 0.01) as uri:
        stored = dataclasses.replace(files, folder=uri)
        for reader in (LocalReader(stored), RayDataReader(stored, tasks_at_once=3)):
            for table, expected in zip(reader.read(asked), LocalReader(files).read(asked), strict=True):
                assert table.equals(expected)
        (tmp_path / files.names[0]).unlink()
        with pytest.raises(ShardCorrupt, match=f"{files.names[0]}: cannot be read"):
            list(LocalReader(stored).read(asked))
