"""Throughput: the service against the bare generator and other servers, one after the other in each round."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from http import HTTPStatus

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.interleaving import divide
from fusionray.benchmarks.serve.baseline import BareGenerator, count_rate
from fusionray.benchmarks.serve.clients import Client
from fusionray.benchmarks.serve.competitors import (
    COMPETITORS,
    HOW_TO_INSTALL,
    SERVERS,
    find_environment,
    start_competitor,
)
from fusionray.benchmarks.serve.config import ServeBenchConfig
from fusionray.benchmarks.serve.context import ServeBenchContext
from fusionray.benchmarks.serve.inputs import write_form
from fusionray.benchmarks.serve.load import Load, LoadResult, apply_load
from fusionray.benchmarks.serve.servers import HOST, Server, start_service
from fusionray.errors import ServiceFailed

OURS = "service"
# The same process, with clients whose source is stored: the bare generator does not read the source either.
KEPT = "service-kept"
# In a wave, every client is answered once. The first waves arrive in bursts, and a load of one wave would be random.
WARM_UP_WAVES, WAVES = 2, 4
# How long the work of a request is timed, to plan the loads.
PLAN_SECONDS = 6.0
Results = Mapping[str, list[LoadResult]]
Start = Callable[[], AbstractContextManager[Server]]


def measure_throughput(context: ServeBenchContext, tick: Callable[[], None]) -> Findings:
    """Start one server after the other in each round, and load it while nothing else runs.

    Idle servers would slow down the others: LitServe's take a third of a core, Ray's processes a sixth.
    """
    config = context.config
    found = Findings()
    bare = BareGenerator(context.bundle)
    load = plan_load(config, count_rate(context.plain.answer, PLAN_SECONDS))
    starts = list_starts(context, found)
    results: dict[str, list[LoadResult]] = {name: [] for name in (OURS, KEPT, *starts)}
    loops: dict[int, list[float]] = {batch: [] for batch in config.batches}
    for number in range(config.rounds):
        # The order is reversed every round, so that drift affects all alike.
        step = 1 if number % 2 == 0 else -1
        for name in [OURS, *starts][::step]:
            if name == OURS:
                load_service(context, load, results, (OURS, KEPT)[::step])
                continue
            try:
                with starts[name]() as running:
                    results[name].append(load_server(context, running, load))
            except ServiceFailed as error:
                # A server that fails is not compared; its earlier results are dropped.
                leave_out(name, error, found)
                del results[name], starts[name]
        for batch in config.batches:
            loops[batch].append(bare.measure(batch, load.seconds / len(config.batches)))
        tick()
    medians = {batch: statistics.median(rates) for batch, rates in loops.items()}
    best = max(medians, key=lambda batch: medians[batch])
    rates = [result.rate for result in results[OURS]]
    found.values |= {
        "throughput": rates,
        "p99_ms": [result.latency_ms(99) for result in results[OURS]],
        "vs_bare_runtime": divide([result.rate for result in results[KEPT]], loops[best]),
        "vs_bare_runtime_two_pictures": divide(rates, loops[best]),
    }
    for server in SERVERS:
        compare(server, results, found)
    found.notes += [
        f"{config.clients} clients, loads of {load.seconds:.0f} s, pictures of {config.picture_pixels} px as "
        f"{config.picture_format}; bundle {context.bundle.description.name}, {context.bundle.description.size} px",
        f"bare generator, faces/s by batch: {', '.join(f'{batch}: {rate:.1f}' for batch, rate in medians.items())}",
        *(describe(name, results[name]) for name in results),
    ]
    return found


def plan_load(config: ServeBenchConfig, pictures_per_second: float) -> Load:
    """Choose the length of a load: as configured, or longer if large pictures or a slow machine need more time for
    their waves. `pictures_per_second`: of the whole work, one picture after the other.
    """
    wave = config.clients / pictures_per_second
    return Load(
        config.clients, max(config.load_seconds, WAVES * wave), max(config.warm_up_seconds, WARM_UP_WAVES * wave)
    )


def list_starts(context: ServeBenchContext, found: Findings) -> dict[str, Start]:
    """List what starts each setup of the competitors; none, and why, if they are not installed."""
    if find_environment(context.config) is None:
        found.missing |= {key: HOW_TO_INSTALL for server in SERVERS for key in keys_of(server)}
        return {}
    return {
        f"{name}-{workers}": partial(start_competitor, competitor, workers, context)
        for name, competitor in COMPETITORS.items()
        for workers in context.config.competitor_workers
    }


def load_service(
    context: ServeBenchContext, load: Load, results: Mapping[str, list[LoadResult]], names: Sequence[str]
) -> None:
    """Start the service, and load it with two pictures a request, and with targets for a stored source, by turns.

    Raises: ServiceFailed.
    """
    config = context.config
    with start_service(OURS, context.bundle.folder, context.form, context.logs, config.service) as service:
        for name in names:
            server = service if name == OURS else store_source(context, service)
            results[name].append(load_server(context, server, load))


def store_source(context: ServeBenchContext, service: Server) -> Server:
    """Store the source in the service; return the server with requests that send only its handle.

    Raises: ServiceFailed.
    """
    body = write_form({"source": context.pictures["source"]}, {})
    client = Client(HOST, service.port, "/v1/identities", body)
    answer = client.ask()
    client.close()
    if answer.status != HTTPStatus.CREATED:
        raise ServiceFailed(f"{service.name} stored no identity (status {answer.status}); see {service.log}")
    fields = {"identity": json.loads(answer.data)["identity"], "format": context.config.picture_format}
    return replace(service, name=KEPT, body=write_form({"target": context.pictures["target"]}, fields))


def leave_out(name: str, error: ServiceFailed, found: Findings) -> None:
    """Record that a setup of a competitor failed; its server is compared only if another setup works."""
    found.notes.append(f"{name} is left out: {error}")
    found.missing |= dict.fromkeys(keys_of(server_of(name)), str(error))


def load_server(context: ServeBenchContext, server: Server, load: Load) -> LoadResult:
    """Load a server, and check one of its answers meanwhile.

    Raises: ServiceFailed if it is wrong.
    """
    other_code = context.config.competitor_code is not None and server.name not in (OURS, KEPT)
    try:
        with ThreadPoolExecutor(1, "load") as thread:
            result = thread.submit(apply_load, server.url, server.body, load)
            context.check(server, other_code=other_code)
            return result.result()
    finally:
        # It may still work for clients that have left.
        server.settle()


def keys_of(server: str) -> tuple[str, str]:
    return f"vs_{server}_throughput", f"vs_{server}_p99"


def compare(server: str, results: Results, found: Findings) -> None:
    """Compare with the best setup of a server that answered every client, in rate and in latency."""
    setups = {name: results[name] for name in results if name not in (OURS, KEPT) and server_of(name) == server}
    if not setups:
        return
    rate_key, latency_key = keys_of(server)
    # A setup that drops requests, or never answers some of its clients, answers the others sooner.
    setups = {
        name: loads for name, loads in setups.items() if not any(load.failed or load.starves_clients for load in loads)
    }
    if not setups:
        reason = f"{server} failed requests, or never answered some clients, in all of its setups"
        found.missing |= dict.fromkeys((rate_key, latency_key), reason)
        return
    found.missing = {key: reason for key, reason in found.missing.items() if key not in (rate_key, latency_key)}
    fastest = max(setups.values(), key=lambda loads: statistics.median(load.rate for load in loads))
    soonest = min(setups.values(), key=lambda loads: statistics.median(load.latency_ms(99) for load in loads))
    found.values[rate_key] = divide([load.rate for load in results[OURS]], [load.rate for load in fastest])
    found.values[latency_key] = divide(
        [load.latency_ms(99) for load in soonest], [load.latency_ms(99) for load in results[OURS]]
    )


def server_of(name: str) -> str:
    """Return the server of a competitor's setup, as in fastapi-2."""
    return COMPETITORS[name.rpartition("-")[0]].server


def describe(name: str, loads: list[LoadResult]) -> str:
    """Describe the results of a server in one line."""
    failed = sum(load.failed for load in loads)
    return (
        f"{name}: {statistics.median(load.rate for load in loads):.2f} pictures/s, p50 "
        f"{statistics.median(load.latency_ms(50) for load in loads):.0f} ms, p99 "
        f"{statistics.median(load.latency_ms(99) for load in loads):.0f} ms"
        + (f", {failed} requests failed" if failed else "")
        + (", some clients were never answered" if any(load.starves_clients for load in loads) else "")
    )
