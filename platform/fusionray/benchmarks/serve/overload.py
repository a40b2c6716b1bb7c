"""What happens when four times as many clients come as the service can answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.serve.client_pool import gather
from fusionray.benchmarks.serve.context import ServeBenchContext
from fusionray.benchmarks.serve.load import Load, apply_load, percentile_ms
from fusionray.benchmarks.serve.servers import start_service

TIMES = 4
# Saturated is what more clients speed up by no more than this.
ENOUGH = 0.95
# As an operator is told to set it (docs/benchmarks.md): the clients that saturate a copy, and half as many again.
ROOM = 1.5
MAX_REQUESTS = "limits.max_requests"


def measure_overload(scene: ServeBenchContext, tick: Callable[[], None]) -> Findings:
    """Find out how many clients saturate the service, then let four times as many come."""
    config = scene.config
    with start_service("saturation", scene.bundle.folder, scene.form, scene.logs, config.service) as server:
        rates = {}
        for clients in config.saturation:
            load = Load(clients, config.turn_seconds, config.warm_up_seconds)
            rates[clients] = apply_load(server.url, server.body, load).rate
    enough = find_enough(rates)
    changes: dict[str, Any] = {MAX_REQUESTS: round(ROOM * enough), **config.service}
    with start_service("overload", scene.bundle.folder, scene.form, scene.logs, changes) as server:
        scene.check(server)
        ratios, refusals, notes = [], [], []
        for _ in range(config.rounds):
            normal = gather(server, scene.checker, enough, config.turn_seconds)
            crowd = gather(server, scene.checker, TIMES * enough, config.turn_seconds)
            calm, full = (percentile_ms(each.answered, 99) for each in (normal, crowd))
            ratios.append(full / calm)
            if crowd.refused:
                refusals.append(percentile_ms(crowd.refused, 99) / 1000.0)
            notes.append(
                f"{enough} clients: {len(normal.answered)} answers, p99 {calm:.0f} ms; {TIMES * enough} clients: "
                f"{len(crowd.answered)} answers, p99 {full:.0f} ms, {len(crowd.refused)} refusals, {crowd.wrong} wrong"
            )
            tick()
    return Findings(
        values={"overload_p99_ratio": ratios, "overload_refused_seconds": refusals},
        missing={} if refusals else {"overload_refused_seconds": "nobody was refused"},
        notes=[f"pictures/s by clients: {', '.join(f'{key}: {rate:.1f}' for key, rate in rates.items())}", *notes],
    )


def find_enough(rates: Mapping[int, float]) -> int:
    """Find the fewest clients that reach nearly the best rate."""
    best = max(rates.values())
    return min(clients for clients, rate in rates.items() if rate >= ENOUGH * best)
