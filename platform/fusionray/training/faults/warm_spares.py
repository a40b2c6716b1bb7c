"""Processes in wait: Ray keeps what it started for an actor that was called off, and gives it to the next one alike.

A worker that is killed takes the whole group down with it; without this, each new worker waits for a new Python that
imports torch. Ray gives a process out again only if nothing ever ran in it and if its runtime environment is the same,
to the letter, that the new actor asks for: so the actors that are called off are asked for where Ray Train asks for its
workers, in its controller, and in the same words.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import ray
import ray.train

from fusionray.environment import WORKER_VARIABLE

# What workers report once they are ready to step: the node they are on.
ARRIVED = "arrived"
WORKER_ENVIRONMENT = {"env_vars": {WORKER_VARIABLE: "1"}}
# A group that ends at once needs no one in wait; one that steps has the cores for its first steps.
DELAY_SECONDS = 3.0
# The process is on its way by then, and far from ready to construct the actor.
CALL_OFF_SECONDS = 0.15


class WarmSpares(ray.train.UserCallback):  # type: ignore[misc, unused-ignore]
    """Ask for as many processes on each node as workers arrived there; runs in Ray Train's controller."""

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """Begin when the workers of a start have arrived."""
        del checkpoint
        if all(ARRIVED in each for each in metrics):
            nodes = Counter(each[ARRIVED] for each in metrics)
            environment = dict(run_context.run_config.worker_runtime_env)
            timer = threading.Timer(DELAY_SECONDS, ask, (nodes, environment))
            timer.daemon = True
            timer.start()


class WarmSpare:
    """The actor that never comes to be."""


def ask(nodes: Counter[str], environment: dict[str, Any]) -> None:
    """Have processes started on nodes, so many on each."""
    from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    worded = WorkerGroup._get_worker_runtime_env(environment)
    actor = ray.remote(runtime_env=worded, num_cpus=0)(WarmSpare)
    asked = [
        actor.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node, count in nodes.items()
        for _ in range(count)
    ]
    threading.Event().wait(CALL_OFF_SECONDS)
    for each in asked:
        ray.kill(each)
