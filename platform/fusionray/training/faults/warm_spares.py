"""Warm spares: idle processes that Ray reuses when it restarts the workers.

If one worker dies, Ray Train restarts the whole group; without warm spares, each new worker waits for a new Python
process that imports torch. Ray keeps a process that it started for a cancelled actor, and reuses it if nothing has run
in it and the new actor requests exactly the same runtime environment. So this callback requests actors in Ray Train's
controller, with the environment of the workers, and cancels them at once.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import ray
import ray.train

from fusionray.environment import TRAINS, WORKER_VARIABLE

# Key of the metric that workers report after their first step: their node.
FIRST_STEP_NODE = "first_step_node"
WORKER_ENVIRONMENT = {"env_vars": {WORKER_VARIABLE: TRAINS}}
# Delay after the first step: a group that fails at once needs no spares.
DELAY_SECONDS = 3.0
# After this delay the process is being started, but cannot construct the actor yet.
CANCEL_SECONDS = 0.15


class WarmSpares(ray.train.UserCallback):  # type: ignore[misc, unused-ignore]
    """Request one spare process per worker on each node; runs in Ray Train's controller."""

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """Request the spares once all workers of a start have made a step, which needed the cores until then."""
        del checkpoint
        if all(FIRST_STEP_NODE in each for each in metrics):
            nodes = Counter(each[FIRST_STEP_NODE] for each in metrics)
            environment = dict(run_context.run_config.worker_runtime_env)
            timer = threading.Timer(DELAY_SECONDS, request_spares, (nodes, environment))
            timer.daemon = True
            timer.start()


class WarmSpare:
    """An actor that is cancelled before Ray constructs it."""


def request_spares(nodes: Counter[str], environment: dict[str, Any]) -> None:
    """Make Ray start processes on nodes: `nodes` holds the number for each node ID."""
    from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    runtime_env = WorkerGroup._get_worker_runtime_env(environment)
    actor = ray.remote(runtime_env=runtime_env, num_cpus=0)(WarmSpare)
    spares = [
        actor.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node, count in nodes.items()
        for _ in range(count)
    ]
    threading.Event().wait(CANCEL_SECONDS)
    for spare in spares:
        ray.kill(spare)
