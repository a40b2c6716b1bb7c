"""Draw which of three nodes reads and decodes, how many rows a second, and with how much of a core.

    python tests/data/reader_nodes.py SHARDS PICTURE.svg [--seconds 25]

The nodes live on this machine, each in a network of its own (root, iproute2). A worker on the first takes both of its
CPUs, as a trainer would, and takes batches as fast as they come: first with `data.decode=worker`, then with `nodes`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [entry for entry in (str(ROOT), str(ROOT / "platform")) if entry not in sys.path]

from fusionray.reporting.charts import ChartLine, LineKind, draw_lines  # noqa: E402
from fusionray.reporting.style import CHARTS, COLOURS  # noqa: E402
from tests.faults.three_nodes import LocalNodes  # noqa: E402

SAMPLE_SECONDS = 1.0
# Blocks of pixels take 32 MB each: in the small store of the tests, readers would wait for one another.
STORE_BYTES = 2**30
TICKS = os.sysconf("SC_CLK_TCK")
PAPER = "svg .paper { fill: var(--paper); }"
# Prints `samples`: seconds since 1970, and the rows so far by the address of the node that read, or decoded, them.
WORKER = """
import json, sys, time
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from fusionray.data.decoding import CropDecoder
from fusionray.data.order import DataOrder, DataPosition
from fusionray.data.ray_data_reader import DECODE_TASKS, RayDataReader
from fusionray.data.shard_files import list_files
from fusionray.data.shards import read_manifest
from fusionray.data.stream import TrainingStream
from fusionray.recipes.single_faces import collate_faces

folder, mode, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
ray.init(log_to_driver=False)

@ray.remote(num_cpus=2)
class Worker:
    def read(self):
        manifest = read_manifest(folder)
        files = list_files(folder, manifest, "train")
        apart = mode == "nodes"
        size = manifest.size if apart else None
        reader = RayDataReader(files, tasks_at_once=DECODE_TASKS if apart else 1, decode_size=size)
        decoder = CropDecoder(manifest.size, threads=1, decoded=apart)
        order = DataOrder(files.rows, seed=0, num_ranks=1, window_rows=2048)
        stream = TrainingStream(order, reader, decoder, rank=0, step_rows=64)
        samples, started = [], time.time()
        for _ in stream.batches(DataPosition(), collate_faces, num_roles=1):
            if time.time() - (samples[-1][0] if samples else 0) >= 0.5:
                samples.append((time.time(), dict(reader.rows_by_node)))
            if time.time() - started > seconds:
                reader.close()
                return samples

here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
print(json.dumps(ray.get(Worker.options(scheduling_strategy=here).remote().read.remote())))
"""
STYLES: Sequence[tuple[LineKind, bool]] = (("main", False), ("second", False), ("other", False), ("other", True))


@dataclass
class Usage:
    """Cores in use over time, by who uses them, and rows/s by node."""

    cores: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    rows: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


def main() -> int:
    """Read in both ways and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--seconds", type=float, default=25.0, help="of each way")
    options = parser.parse_args()
    usages = {}
    with LocalNodes(namespaces=True, store_bytes=STORE_BYTES) as nodes:
        for mode in ("worker", "nodes"):
            usages[mode] = watch(nodes, str(options.shards.resolve()), mode, options.seconds)
    options.picture.write_text(draw(usages))
    for mode, usage in usages.items():
        for kind, lines in (("rows/s", usage.rows), ("cores", usage.cores)):
            for name, points in lines.items():
                later = [value for _, value in points[len(points) // 2 :]]
                print(f"decode={mode}: {name}: {sum(later) / max(1, len(later)):.3g} {kind}")
    return 0


def watch(nodes: LocalNodes, shards: str, mode: str, seconds: float) -> Usage:
    """Let the worker read, and sample the processor time of all nodes meanwhile."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/platform", **nodes.environment}
    command = [sys.executable, "-c", WORKER, shards, mode, str(seconds)]
    names = {node.ip: f"node {node.index + 1}" for node in nodes.nodes}
    leaders = {node.pid: names[node.ip] for node in nodes.nodes}
    taken: list[tuple[float, Counter[str]]] = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as driver:
        while driver.poll() is None:
            taken.append((time.time(), measure_cpu(leaders)))
            time.sleep(SAMPLE_SECONDS)
        assert driver.stdout is not None
        samples = json.loads(driver.stdout.read())
    usage = Usage()
    began = samples[0][0]
    for (start, before), (end, after) in pairwise(samples):
        for address, name in names.items():
            rate = (after.get(address, 0) - before.get(address, 0)) / (end - start)
            usage.rows.setdefault(name, []).append(((start + end) / 2 - began, rate))
    for (start, spent), (end, later) in pairwise(taken):
        if began <= start and end <= samples[-1][0]:
            for name in sorted(later):
                cores = max(0.0, later[name] - spent[name]) / (end - start)
                usage.cores.setdefault(name, []).append(((start + end) / 2 - began, cores))
    return usage


def measure_cpu(leaders: Mapping[int, str]) -> Counter[str]:
    """Sum the processor seconds of the processes below each leader; the worker's own process counts apart."""
    parents, spent, names = {}, {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "stat").read_text()
            names[int(entry.name)] = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        fields = line.rpartition(")")[2].split()
        parents[int(entry.name)] = int(fields[1])
        spent[int(entry.name)] = (int(fields[11]) + int(fields[12])) / TICKS
    seconds: Counter[str] = Counter()
    for process, own in spent.items():
        above = process
        while above > 1 and above not in leaders:
            above = parents.get(above, 0)
        if above in leaders:
            is_worker = names[process].startswith(b"ray::Worker")
            seconds["worker" if is_worker else f"rest of {leaders[above]}"] += own
    return seconds


def draw(usages: Mapping[str, Usage]) -> str:
    """Draw rows/s and cores of both ways, side by side."""
    drawn = []
    for column, (mode, usage) in enumerate(usages.items()):
        verb = "read" if mode == "worker" else "decoded"
        for row, (lines, unit) in enumerate(((usage.rows, f"rows/s, by who {verb} them"), (usage.cores, "cores"))):
            styled = [
                ChartLine(points, name, kind, dotted)
                for (name, points), (kind, dotted) in zip(lines.items(), STYLES, strict=False)
            ]
            chart = draw_lines(styled, title=unit, x_label="seconds", y_label=f"data.decode={mode}: {unit}")
            place = f'<svg x="{column * 380}" y="{row * 310}" width="360" height="300" '
            drawn.append(place + chart.removeprefix("<svg "))
    size = f"{380 * len(usages)} 620"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}"><style>{COLOURS}{CHARTS}{PAPER}</style>'
        f'<rect class="paper" width="100%" height="100%"/>{"".join(drawn)}</svg>\n'
    )


if __name__ == "__main__":
    sys.exit(main())
