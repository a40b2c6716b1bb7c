"""Overload: four times as many clients as the service can answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.serve.client_pool import run_clients
from fusionray.benchmarks.serve.context import ServeBenchContext
from fusionray.benchmarks.serve.load import Load, apply_load, percentile_ms
from fusionray.benchmarks.serve.servers import start_service

TIMES = 4
# The service is saturated if more clients raise the rate by no more than this factor.
ENOUGH = 0.95
# As docs/benchmarks.md advises operators: the clients that saturate a replica, and half as many again.
ROOM = 1.5
MAX_REQUESTS = "limits.max_requests"


def measure_overload(context: ServeBenchContext, tick: Callable[[], None]) -> Findings:
    """Find how many clients saturate the service, then run four times as many."""
    config = context.config
    with start_service("saturation", context.bundle.folder, context.form, context.logs, config.service) as server:
        rates = {}
        for clients in config.saturation:
            load = Load(clients, config.load_seconds, config.warm_up_seconds)
            rates[clients] = apply_load(server.url, server.body, load).rate
    enough = find_enough(rates)
    changes: dict[str, Any] = {MAX_REQUESTS: round(ROOM * enough), **config.service}
    with start_service("overload", context.bundle.folder, context.form, context.logs, changes) as server:
        context.check(server)
        ratios, refusals, notes = [], [], []
        for _ in range(config.rounds):
            normal = run_clients(server, context.checker, enough, config.load_seconds)
            flooded = run_clients(server, context.checker, TIMES * enough, config.load_seconds)
            calm, full = (percentile_ms(each.answered, 99) for each in (normal, flooded))
            ratios.append(full / calm)
            if flooded.refused:
                refusals.append(percentile_ms(flooded.refused, 99) / 1000.0)
            notes.append(
                f"{enough} clients: {len(normal.answered)} answers, p99 {calm:.0f} ms; {TIMES * enough} clients: "
                f"{len(flooded.answered)} answers, p99 {full:.0f} ms, {len(flooded.refused)} refusals, "
                f"{flooded.wrong} wrong"
            )
            tick()
    return Findings(
        values={"overload_p99_ratio": ratios, "overload_refused_seconds": refusals},
        missing={} if refusals else {"overload_refused_seconds": "no request was refused"},
        notes=[f"pictures/s by clients: {', '.join(f'{key}: {rate:.1f}' for key, rate in rates.items())}", *notes],
    )


def find_enough(rates: Mapping[int, float]) -> int:
    """Find the fewest clients that nearly reach the best rate."""
    best = max(rates.values())
    return min(clients for clients, rate in rates.items() if rate >= ENOUGH * best)
