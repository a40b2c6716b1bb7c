"""The batch script for Slurm, run for real, but for Slurm: two of its commands are stand-ins that enter namespaces."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fusionray.hardware.processes import find_processes
from tests.cluster.manifests import ROOT
from tests.faults.namespaces import Network, can_make_namespaces

SCRIPT = ROOT / "cluster" / "slurm" / "fusionray.sbatch"
NODES = ("node0", "node1", "node2")

# `srun --overlap --nodes=N --ntasks=N (--nodelist=NODE | --exclude=NODE) COMMAND...`, each in a namespace of its own.
SRUN = """#!{python}
import signal, subprocess, sys
places = {places!r}
arguments = sys.argv[1:]
options = {{}}
while arguments and arguments[0].startswith("--"):
    name, _, value = arguments.pop(0).partition("=")
    options[name] = value
chosen = [options["--nodelist"]] if "--nodelist" in options else [n for n in places if n != options["--exclude"]]
assert len(chosen) == int(options["--nodes"]) == int(options["--ntasks"]), (chosen, options)
if arguments[0] == "hostname":
    print(places[chosen[0]][0], "fe80::1")
    sys.exit(0)
# A disk of its own for each node.
running = [
    subprocess.Popen([*places[node][1], *(each.replace("/ray-", f"/{{node}}-") for each in arguments)])
    for node in chosen
]
signal.signal(signal.SIGTERM, lambda *_: [process.terminate() for process in running])
sys.exit(max(process.wait() for process in running))
"""

LOOK = """
import signal, sys, time, ray
ray.init(log_to_driver=False)
print("nodes", sum(node["Alive"] for node in ray.nodes()), "cpus", int(ray.cluster_resources()["CPU"]), flush=True)
if sys.argv[1] == "wait":
    def stop(*_):
        time.sleep(1)
        print("saved", flush=True)
        sys.exit(143)
    signal.signal(signal.SIGTERM, stop)
    time.sleep(300)
sys.exit(7)
"""


@pytest.fixture
def allocation(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Variables of a job with three nodes, and commands of Slurm on the path."""
    if not can_make_namespaces():
        pytest.skip("network namespaces cannot be made here")
    # Paths of Ray's sockets may have 107 characters, more than pytest's folders leave.
    with closing(Network()) as network, tempfile.TemporaryDirectory(prefix="fr-", ignore_cleanup_errors=True) as disk:
        places: dict[str, tuple[str, list[str]]] = {NODES[0]: (network.ip, [])}
        for index, name in enumerate(NODES[1:], start=1):
            places[name] = (network.add(index), network.enter(index))
        commands = tmp_path / "bin"
        commands.mkdir()
        (commands / "srun").write_text(SRUN.format(python=sys.executable, places=places))
        (commands / "scontrol").write_text("#!/bin/sh\n" + "".join(f"echo {name}\n" for name in NODES))
        for command in commands.iterdir():
            command.chmod(0o755)
        mark = secrets.token_hex(8)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        yield {
            **kept,
            "PATH": f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SLURM_JOB_ID": str(secrets.randbelow(10_000)),
            "SLURM_JOB_NODELIST": "node[0-2]",
            "TMPDIR": disk,
            "FUSIONRAY_TEST_MARK": mark,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        until = time.monotonic() + 30
        while left := find_processes(variable=f"FUSIONRAY_TEST_MARK={mark}"):
            assert time.monotonic() < until, left
            time.sleep(0.2)


def start(allocation: dict[str, str], tmp_path: Path, how: str) -> subprocess.Popen[str]:
    program = tmp_path / "look.py"
    program.write_text(LOOK)
    return subprocess.Popen(
        ["bash", str(SCRIPT), "python", str(program), how],
        env=allocation,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.starts_ray
@pytest.mark.slow(seconds=20)
def test_a_command_finds_a_ray_of_all_nodes_and_its_exit_status_is_the_jobs(
    allocation: dict[str, str], tmp_path: Path
) -> None:
    job = start(allocation, tmp_path, "end")
    said, _ = job.communicate(timeout=240)
    assert "nodes 3 cpus" in said
    assert job.returncode == 7, said


@pytest.mark.starts_ray
@pytest.mark.slow(seconds=20)
def test_the_command_is_told_of_the_end_and_may_save(allocation: dict[str, str], tmp_path: Path) -> None:
    said = []
    with start(allocation, tmp_path, "wait") as job:
        assert job.stdout is not None
        for line in job.stdout:
            said.append(line)
            if line.startswith("nodes 3"):
                time.sleep(1)
                job.send_signal(signal.SIGTERM)  # as --signal=B:TERM@120 does
    assert job.returncode == 143, said
    assert "saved\n" in said


def test_a_job_without_a_command_says_so(tmp_path: Path) -> None:
    done = subprocess.run(["bash", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("fusionray.sbatch: a command is missing, such as: ")


@pytest.mark.parametrize("script", [SCRIPT, ROOT / ".ci" / "run"])
def test_shellcheck_has_no_complaint(script: Path) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
