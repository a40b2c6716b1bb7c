"""Nodes of a run are lost and come back: the run continues with fewer workers, then with all.

Minutes of work for two cores: `make chaos` runs this, `make test` does not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusionray.tracking.runs import metric_history
from fusionray.training.faults.preemption import EXIT_STATUS
from fusionray.training.schedule import ScheduleConfig, learning_rate, scale_lr
from tests.faults.driver import Driver, read_log_lines, wait_until
from tests.faults.three_nodes import LocalNodes, can_make_namespaces
from tests.support.tiny_fusion import build_config
from tests.support.tiny_run import BATCH, LOG_IMAGES, find_runs, read_steps, write_run

pytestmark = [
    pytest.mark.skipif("CHAOS_ROUNDS" not in os.environ, reason="takes minutes: `make chaos` runs it"),
    pytest.mark.starts_ray,
    pytest.mark.timeout(900),
]
# The goals of docs/faults.md, in seconds.
LOST_SECONDS, BACK_SECONDS, CUT_SECONDS = 25.0, 30.0, 20.0
STEADY_SECONDS = 5.0
IMAGES = 10**6


class NodeRun:
    """A run with a worker on each of three nodes, observed by its entries in the tracker."""

    def __init__(self, nodes: LocalNodes, folder: Path) -> None:
        changes = {
            "workers": {"num_workers": 3, "min_workers": 1, "cpus_per_worker": 1, "warm_spares": True},
            "budget": {"images": IMAGES},
        }
        settings = write_run(folder, folder / "runs", **changes)
        self.uri = f"sqlite:///{settings.parent}/mlflow.db"
        self.driver = Driver(settings, nodes.environment["RAY_TMPDIR"], environment=nodes.environment)
        self.nodes = nodes

    def entries(self) -> list[tuple[float, int]]:
        """List entries as (seconds since the epoch, workers)."""
        client, (run,) = find_runs(self.uri)
        return [(entry.timestamp / 1000, int(entry.value)) for entry in client.get_metric_history(run, "num_workers")]

    def wait_for(self, workers: int, since: float, seconds: float = 120) -> float:
        """Wait until this many workers have taken steps; return the seconds since `since`."""
        found: list[float] = []

        def told() -> bool:
            assert self.driver.process is not None
            assert self.driver.process.poll() is None, self.driver.log
            found[:] = [moment for moment, number in self.entries() if number == workers and moment > since]
            return bool(found)

        wait_until(f"steps of {workers} workers", told, seconds)
        return min(found) - since

    def start(self) -> None:
        """Start the driver and wait until all workers step."""
        self.driver.start()
        # Opening a new store at the same time as the driver would disturb its migrations.
        wait_until("the first worker's line", lambda: bool(read_log_lines(self.driver, "worker(s) x")))
        self.wait_for(3, 0.0)

    def finish(self) -> None:
        """Stop the run, and check that its entries are continuous: no gap, no repetition, no jump."""
        self.driver.send(signal.SIGTERM)
        assert self.driver.wait(60) == EXIT_STATUS, self.driver.log
        steps = read_steps(self.uri)
        assert steps == list(range(LOG_IMAGES, len(steps) * LOG_IMAGES + 1, LOG_IMAGES))
        _, (run,) = find_runs(self.uri)
        # The effective batch and the schedule depend on the run's position, not on its workers.
        peak = scale_lr(build_config().generator_optimizer.base_lr, BATCH)
        for images, rate in metric_history(self.uri, run, "lr_generator"):
            assert rate == pytest.approx(learning_rate(ScheduleConfig(), peak, images - BATCH, IMAGES))
        losses = [value for _, value in metric_history(self.uri, run, "loss_truth")]
        half = len(losses) // 2
        assert statistics.mean(losses[half:]) < 1.2 * statistics.mean(losses[:half])


@contextlib.contextmanager
def running(folder: Path, *, namespaces: bool) -> Iterator[NodeRun]:
    """Run a worker on each of three nodes."""
    with LocalNodes(cpus=1, namespaces=namespaces) as nodes:
        run = NodeRun(nodes, folder)
        try:
            run.start()
            yield run
        finally:
            print(run.driver.log[-6000:].replace("\r", "\n"))
            if run.driver.process is not None and run.driver.process.poll() is None:
                run.driver.process.kill()
                run.driver.process.wait()


def test_a_run_continues_without_a_lost_node_and_grows_back(tmp_path: Path, rounds: int) -> None:
    with running(tmp_path, namespaces=False) as run:
        for number in range(rounds):
            time.sleep(STEADY_SECONDS)
            lost = time.time()
            run.nodes.kill(1 + number % 2)
            shrunk = run.wait_for(2, lost)
            time.sleep(STEADY_SECONDS)
            run.nodes.start(1 + number % 2)
            grown = run.wait_for(3, time.time())
            print(f"\nMEASURED node lost: 2 workers step after {shrunk:.1f} s; back: 3 step after {grown:.1f} s")
            assert shrunk < LOST_SECONDS
            assert grown < BACK_SECONDS
        run.finish()


@pytest.mark.skipif(not can_make_namespaces(), reason="network namespaces take root and iproute2")
def test_a_run_continues_without_a_node_that_is_cut_off(tmp_path: Path, rounds: int) -> None:
    with running(tmp_path, namespaces=True) as run:
        nodes = run.nodes
        for number in range(rounds):
            index = 1 + number % 2
            time.sleep(STEADY_SECONDS)
            cut = time.time()
            nodes.cut(index)
            nodes.states.wait_for(nodes.nodes[index].node_id, "DEAD", 60)
            noticed = time.time() - cut
            shrunk = run.wait_for(2, cut)
            nodes.mend(index)
            nodes.start(index)
            grown = run.wait_for(3, time.time())
            print(
                f"\nMEASURED node cut off: noticed after {noticed:.1f} s, 2 workers step after {shrunk:.1f} s;", end=" "
            )
            print(f"mended: 3 step after {grown:.1f} s")
            assert noticed < CUT_SECONDS
        run.finish()
