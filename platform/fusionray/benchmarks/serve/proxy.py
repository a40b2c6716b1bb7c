"""The cost of the proxy: HAProxy against Ray Serve's own proxy, before a stub that takes a millisecond."""

from __future__ import annotations

import sys
from collections.abc import Callable

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.interleaving import divide
from fusionray.benchmarks.serve.context import TARGET_SEED, ServeBenchContext
from fusionray.benchmarks.serve.inputs import draw_person, write_form
from fusionray.benchmarks.serve.load import Load, LoadResult, apply_load
from fusionray.benchmarks.serve.servers import ray_folder, start
from fusionray.ray_cluster.connection import find_free_port

# Values of RAY_SERVE_ENABLE_HA_PROXY: as `environment.py` sets it, and Ray Serve's default.
PROXIES = {"haproxy": "1", "python": "0"}
STUB = "fusionray.benchmarks.serve.stub_service"


def measure_proxy(context: ServeBenchContext, tick: Callable[[], None]) -> Findings:
    """Start the stub service behind each proxy, alternating."""
    results: dict[str, list[LoadResult]] = {proxy: [] for proxy in PROXIES}
    for number in range(context.config.rounds):
        for proxy in list(PROXIES)[:: 1 if number % 2 == 0 else -1]:
            results[proxy].append(load_stub(context, proxy))
        tick()
    rates = {proxy: [result.rate for result in found] for proxy, found in results.items()}
    return Findings(
        values={
            "http_requests_per_second": rates["haproxy"],
            "http_requests_per_second_vs_python_proxy": divide(rates["haproxy"], rates["python"]),
        },
        notes=[
            f"stub behind {proxy}: {rate:.0f} requests/s, p50 {result.latency_ms(50):.1f} ms, p99 "
            f"{result.latency_ms(99):.1f} ms, {result.failed} failed"
            for proxy, found in results.items()
            for rate, result in zip(rates[proxy], found, strict=True)
        ],
    )


def load_stub(context: ServeBenchContext, proxy: str) -> LoadResult:
    """Start the stub service behind a proxy and load it.

    Raises: ServiceFailed.
    """
    config = context.config
    # The request of a client that uses one source many times: the source is stored, and only its handle is sent.
    fields = {"identity": "stub", "format": config.picture_format}
    body = write_form({"target": draw_person(TARGET_SEED, config.proxy_pixels)}, fields)
    port = find_free_port()
    command = [sys.executable, "-m", STUB, str(context.bundle.folder), str(port)]
    with ray_folder() as variables:
        variables |= {"RAY_SERVE_ENABLE_HA_PROXY": PROXIES[proxy]}
        with start(f"stub-{proxy}", command, body, port, context.logs, environment=variables) as server:
            return apply_load(server.url, body, Load(config.clients, config.load_seconds, config.warm_up_seconds))
