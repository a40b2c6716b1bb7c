"""The cost of the proxy: HAProxy against Ray Serve's own proxy, before a stub that takes a millisecond."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.interleaving import divide
from fusionray.benchmarks.serve.context import TARGET_SEED, ServeBenchContext
from fusionray.benchmarks.serve.inputs import draw_person, write_form
from fusionray.benchmarks.serve.load import Load, LoadResult, apply_load
from fusionray.benchmarks.serve.servers import Server, ray_folder, start
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
    with start_stub(f"stub-{proxy}", context, environment={"RAY_SERVE_ENABLE_HA_PROXY": PROXIES[proxy]}) as server:
        return apply_load(server.url, server.body, Load(config.clients, config.load_seconds, config.warm_up_seconds))


@contextmanager
def start_stub(
    name: str, context: ServeBenchContext, options: Sequence[str] = (), *, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run the stub service, with command-line options of its own.

    Raises: ServiceFailed.
    """
    # The request of a client that uses one source many times: the source is stored, and only its handle is sent.
    fields = {"identity": "stub", "format": context.config.picture_format}
    body = write_form({"target": draw_person(TARGET_SEED, context.config.proxy_pixels)}, fields)
    port = find_free_port()
    with ray_folder() as own:
        stores = [f"{store}.folder={own['RAY_TMPDIR']}/{store}" for store in ("identities", "jobs")]
        command = [sys.executable, "-m", STUB, str(context.bundle.folder), str(port), *stores, *options]
        with start(name, command, body, port, context.logs, environment={**own, **(environment or {})}) as server:
            yield server
