"""What the way in costs: HAProxy before the replicas against Ray Serve's own proxy, with a model of a millisecond."""

from __future__ import annotations

import sys
from collections.abc import Callable

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.interleaving import divide
from fusionray.benchmarks.serve.context import TARGET_SEED, ServeBenchContext
from fusionray.benchmarks.serve.inputs import draw_person, write_form
from fusionray.benchmarks.serve.load import Load, Turn, apply_load
from fusionray.benchmarks.serve.servers import find_free_port, ray_folder, start

# As `environment.py` sets it, and as Ray Serve is without.
DOORS = {"haproxy": "1", "python": "0"}
STUB = "fusionray.benchmarks.serve.stub_service"


def measure_door(scene: ServeBenchContext, tick: Callable[[], None]) -> Findings:
    """Start the service with its stub behind one door and the other, in turns."""
    turns: dict[str, list[Turn]] = {door: [] for door in DOORS}
    for number in range(scene.config.rounds):
        for door in list(DOORS)[:: 1 if number % 2 == 0 else -1]:
            turns[door].append(load_stub(scene, door))
        tick()
    rates = {door: [turn.rate for turn in found] for door, found in turns.items()}
    return Findings(
        values={
            "http_requests_per_second": rates["haproxy"],
            "http_requests_per_second_vs_python_proxy": divide(rates["haproxy"], rates["python"]),
        },
        notes=[
            f"stub behind {door}: {rate:.0f} requests/s, p50 {turn.latency_ms(50):.1f} ms, p99 "
            f"{turn.latency_ms(99):.1f} ms, {turn.failed} failed"
            for door, found in turns.items()
            for rate, turn in zip(rates[door], found, strict=True)
        ],
    )


def load_stub(scene: ServeBenchContext, door: str) -> Turn:
    """Start the stub behind a door and load it.

    Raises: ServiceFailed.
    """
    config = scene.config
    # As a client asks that carries one face over many times: the source is kept, and only its handle is sent.
    fields = {"identity": "stub", "format": config.picture_format}
    body = write_form({"target": draw_person(TARGET_SEED, config.door_pixels)}, fields)
    port = find_free_port()
    command = [sys.executable, "-m", STUB, str(scene.bundle.folder), str(port)]
    with ray_folder() as variables:
        variables |= {"RAY_SERVE_ENABLE_HA_PROXY": DOORS[door]}
        with start(f"stub-{door}", command, body, port, scene.logs, environment=variables) as server:
            return apply_load(server.url, body, Load(config.clients, config.turn_seconds, config.warm_up_seconds))
