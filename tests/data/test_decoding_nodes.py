"""Crops that are decoded by tasks on other nodes (`data.decode=nodes`): three nodes, each in a network of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.three_nodes import LocalNodes, can_make_namespaces
from tests.support.child_python import run_python
from tests.support.tiny_shards import SIZE, write_tiny_shards

pytestmark = [pytest.mark.starts_ray, pytest.mark.slow(seconds=60)]

# The head's CPUs are taken, as by training workers.
READ = """
import itertools, json, sys, time
import numpy as np, pyarrow as pa, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from fusionray.data import ray_data_reader
from fusionray.data.segments import Segment
from fusionray.data.ray_data_reader import RayDataReader
from fusionray.data.segment_source import decode_table
from fusionray.data.shard_files import list_files
from fusionray.data.shard_readers import LocalReader
from fusionray.data.shards import read_manifest

ray.init(log_to_driver=False)

@ray.remote(num_cpus=2)
class Worker:
    def read(self, folder, size):
        ray_data_reader.SEGMENTS_PER_TASK = 4
        files = list_files(folder, read_manifest(folder), "train")
        def ask():
            return (Segment(number % 4, np.arange(12)) for number in itertools.count())
        reader = RayDataReader(files, tasks_at_once=4, decode_size=size)
        limit = time.monotonic() + 90
        for table, expected in zip(reader.read(ask()), LocalReader(files).read(ask())):
            assert table.equals(decode_table(expected, files, size))
            by_node = reader.rows_by_node
            # Processes of the nodes do not start at the same time: read until each has done its part.
            if len(by_node) > 1 and min(by_node.values()) > 0.2 * by_node.total() or time.monotonic() > limit:
                reader.close()
                return by_node

here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
worker = Worker.options(scheduling_strategy=here).remote()
print(json.dumps(ray.get(worker.read.remote(sys.argv[1], int(sys.argv[2])))))
"""


def test_both_nodes_without_a_worker_decode_and_the_worker_gets_equal_pixels(tmp_path: Path) -> None:
    if not can_make_namespaces():
        pytest.skip("needs the right to make network namespaces")
    write_tiny_shards(tmp_path, people=8, pictures=8)
    with LocalNodes(namespaces=True) as nodes:
        rows = json.loads(run_python("-c", READ, str(tmp_path), str(SIZE), **nodes.environment))
        others = {node.ip for node in nodes.nodes[1:]}
    assert set(rows) == others
    assert min(rows.values()) > 0.2 * sum(rows.values())
