"""How many pictures a second: the service beside the bare generator and beside other servers, in turns."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from http import HTTPStatus

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.interleaving import divide
from fusionray.benchmarks.serve.baseline import BareGenerator
from fusionray.benchmarks.serve.clients import Client
from fusionray.benchmarks.serve.competitors import COMPETITORS, HOW_TO_GET, SERVERS, find_environment, start_competitor
from fusionray.benchmarks.serve.config import ServeBenchConfig
from fusionray.benchmarks.serve.context import ServeBenchContext
from fusionray.benchmarks.serve.inputs import write_form
from fusionray.benchmarks.serve.load import Load, Turn, apply_load
from fusionray.benchmarks.serve.servers import HOST, Server, start_service
from fusionray.errors import ServiceFailed

OURS = "service"
# The same process, asked by clients that had it read their source once: what the bare generator is given, too.
KEPT = "service-kept"
# In a wave every client is answered once. The first two come all at once; a turn of one would measure where it fell.
WARM_UP_WAVES, WAVES = 2, 4
Turns = Mapping[str, list[Turn]]


def measure_throughput(scene: ServeBenchContext, tick: Callable[[], None]) -> Findings:
    """Let all servers run side by side and load one after the other, round by round."""
    config = scene.config
    found = Findings()
    bare = BareGenerator(scene.bundle)
    with ExitStack() as stack:
        servers = start_all(scene, stack, found)
        # Beside servers that run, if idle: as it will be when it counts.
        load = plan_load(config, bare.measure(1, config.warm_up_seconds))
        turns: dict[str, list[Turn]] = {name: [] for name in servers}
        loops: dict[int, list[float]] = {batch: [] for batch in config.batches}
        for number in range(config.rounds):
            # The order turns round with every round, so that drift favours nobody.
            for name in list(servers)[:: 1 if number % 2 == 0 else -1]:
                try:
                    turns[name].append(take_turn(scene, servers[name], load))
                except ServiceFailed as error:
                    if name in (OURS, KEPT):
                        raise
                    # A server that breaks is not compared: what it reached until then goes with it.
                    leave_out(name, error, found)
                    del turns[name], servers[name]
            for batch in config.batches:
                loops[batch].append(bare.measure(batch, load.seconds / len(config.batches)))
            tick()
    best = max(loops, key=lambda batch: statistics.median(loops[batch]))
    rates = [turn.rate for turn in turns[OURS]]
    found.values |= {
        "throughput": rates,
        "p99_ms": [turn.latency_ms(99) for turn in turns[OURS]],
        "vs_bare_runtime": divide([turn.rate for turn in turns[KEPT]], loops[best]),
        "vs_bare_runtime_two_pictures": divide(rates, loops[best]),
    }
    for server in SERVERS:
        compare(server, turns, found)
    found.notes += [
        f"{config.clients} clients, turns of {load.seconds:.0f} s, pictures of {config.picture_pixels} px as "
        f"{config.picture_format}; bundle {scene.bundle.description.name}, {scene.bundle.description.size} px",
        f"bare generator, faces/s by batch: {', '.join(f'{key}: {middle(loops[key]):.1f}' for key in loops)}",
        *(describe(name, turns[name]) for name in turns),
    ]
    return found


def plan_load(config: ServeBenchConfig, faces_per_second: float) -> Load:
    """Make turns as long as the settings have it, or longer where answers of a slow machine take longer than that."""
    wave = config.clients / faces_per_second
    return Load(
        config.clients, max(config.turn_seconds, WAVES * wave), max(config.warm_up_seconds, WARM_UP_WAVES * wave)
    )


def start_all(scene: ServeBenchContext, stack: ExitStack, found: Findings) -> dict[str, Server]:
    """Start the service and every competitor that can be started; why one could not is told."""
    config = scene.config
    service = start_service(OURS, scene.bundle.folder, scene.form, scene.logs, config.service)
    ours = stack.enter_context(service)
    servers = {OURS: ours, KEPT: keep_source(scene, ours)}
    if find_environment(config) is None:
        found.missing |= {key: HOW_TO_GET for server in SERVERS for key in keys_of(server)}
        return servers
    for name, competitor in COMPETITORS.items():
        for workers in config.competitor_workers:
            running = start_competitor(competitor, workers, scene)
            try:
                servers[f"{name}-{workers}"] = stack.enter_context(running)
            except ServiceFailed as error:
                leave_out(f"{name}-{workers}", error, found)
    return servers


def keep_source(scene: ServeBenchContext, service: Server) -> Server:
    """Let the service keep the source; what it is asked from then on names only its handle.

    Raises: ServiceFailed.
    """
    body = write_form({"source": scene.pictures["source"]}, {})
    client = Client(HOST, service.port, "/v1/identities", body)
    answer = client.ask()
    client.close()
    if answer.status != HTTPStatus.CREATED:
        raise ServiceFailed(f"{service.name} kept no identity (status {answer.status}); see {service.log}")
    fields = {"identity": json.loads(answer.data)["identity"], "format": scene.config.picture_format}
    return replace(service, name=KEPT, body=write_form({"target": scene.pictures["target"]}, fields))


def leave_out(name: str, error: ServiceFailed, found: Findings) -> None:
    """Tell that a competitor's way of serving failed; its server has figures only if another way holds."""
    found.notes.append(f"{name} is left out: {error}")
    found.missing |= dict.fromkeys(keys_of(server_of(name)), str(error))


def take_turn(scene: ServeBenchContext, server: Server, load: Load) -> Turn:
    """Load a server, and look at one of its answers meanwhile.

    Raises: ServiceFailed if it is wrong.
    """
    try:
        with ThreadPoolExecutor(1, "load") as thread:
            turn = thread.submit(apply_load, server.url, server.body, load)
            scene.check(server)
            return turn.result()
    finally:
        # Also of one that failed: the next one needs the cores.
        server.settle()


def keys_of(server: str) -> tuple[str, str]:
    return f"vs_{server}_throughput", f"vs_{server}_p99"


def compare(server: str, turns: Turns, found: Findings) -> None:
    """Compare with the best that a server reached in any of its ways that failed none, in rate and in latency."""
    ways = {name: turns[name] for name, competitor in named_ways(turns) if competitor == server}
    if not ways:
        return
    faster, sooner = keys_of(server)
    # A way that drops requests is soon done with those that it answers.
    ways = {name: way for name, way in ways.items() if not any(turn.failed for turn in way)}
    if not ways:
        found.missing |= dict.fromkeys((faster, sooner), f"{server} failed requests, whichever way it was set up")
        return
    found.missing = {key: reason for key, reason in found.missing.items() if key not in (faster, sooner)}
    fastest = max(ways.values(), key=lambda way: middle([turn.rate for turn in way]))
    soonest = min(ways.values(), key=lambda way: middle([turn.latency_ms(99) for turn in way]))
    found.values[faster] = divide([turn.rate for turn in turns[OURS]], [turn.rate for turn in fastest])
    found.values[sooner] = divide(
        [turn.latency_ms(99) for turn in soonest], [turn.latency_ms(99) for turn in turns[OURS]]
    )


def named_ways(turns: Turns) -> list[tuple[str, str]]:
    return [(name, server_of(name)) for name in turns if name not in (OURS, KEPT)]


def server_of(name: str) -> str:
    """Name the server behind a competitor's way of serving, as in fastapi-2."""
    return COMPETITORS[name.rpartition("-")[0]].server


def describe(name: str, turns: list[Turn]) -> str:
    """Say what a server reached."""
    failed = sum(turn.failed for turn in turns)
    return (
        f"{name}: {middle([turn.rate for turn in turns]):.2f} pictures/s, p50 "
        f"{middle([turn.latency_ms(50) for turn in turns]):.0f} ms, p99 "
        f"{middle([turn.latency_ms(99) for turn in turns]):.0f} ms" + (f", {failed} requests failed" if failed else "")
    )


def middle(values: list[float]) -> float:
    return statistics.median(values)
