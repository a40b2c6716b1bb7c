"""The competing servers: where they are installed, how each starts, and its settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fusionray.benchmarks.serve.config import ServeBenchConfig
from fusionray.benchmarks.serve.context import ServeBenchContext
from fusionray.benchmarks.serve.servers import HOST, Server, start
from fusionray.ray_cluster.connection import find_free_port
from fusionray.runtime.crop_fuser import MAX_BATCH
from fusionray_competitors.config import VARIABLE, CompetitorConfig

MODULES = "fusionray_competitors"
HOW_TO_INSTALL = (
    "the other servers are not installed; run `make bench-competitors`, or name their environment by competitors=DIR"
)
# Turn off the telemetry of the other servers.
SILENCE = {"BENTOML_DO_NOT_TRACK": "True", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True)
class Competitor:
    """One setup of another server: its name, its module, and for BentoML the service class."""

    server: str
    module: str
    service: str = ""


# A server may have several setups; the best one counts.
COMPETITORS = {
    "litserve": Competitor("litserve", "litserve_server"),
    "bentoml-batches": Competitor("bentoml", "bentoml_server", "Pictures"),
    "bentoml-threads": Competitor("bentoml", "bentoml_plain", "PlainPipeline"),
    "fastapi": Competitor("fastapi", "fastapi_server"),
}
SERVERS = tuple(dict.fromkeys(competitor.server for competitor in COMPETITORS.values()))


def find_environment(config: ServeBenchConfig) -> Path | None:
    """Find the environment of the competitors; None if it does not exist."""
    folder = Path(config.competitors).expanduser().absolute()
    return folder if (folder / "bin" / "python").is_file() else None


@contextmanager
def start_competitor(competitor: Competitor, workers: int, context: ServeBenchContext) -> Iterator[Server]:
    """Run a competitor for the length of a `with` block.

    Raises: ServiceFailed.
    """
    config = context.config
    environment = find_environment(config)
    assert environment is not None
    port = find_free_port()
    settings = CompetitorConfig(
        bundle=str(context.bundle.folder),
        port=port,
        workers=workers,
        threads=len(os.sched_getaffinity(0)) + 1,
        max_batch=MAX_BATCH,
        picture_format=config.picture_format,
    )
    name = f"{competitor.module}-{workers}"
    python = str(environment / "bin" / "python")
    command = [python, "-m", f"{MODULES}.{competitor.module}"]
    if competitor.service:
        place = ["--host", HOST, "--port", str(port)]
        command = [python, "-m", "bentoml", "serve", f"{MODULES}.{competitor.module}:{competitor.service}", *place]
    variables = {**SILENCE, VARIABLE: settings.dump(), "BENTOML_HOME": str(context.logs / "bentoml")}
    if config.competitor_code:
        variables["PYTHONPATH"] = str(Path(config.competitor_code).expanduser().absolute())
    with start(name, command, context.form, port, context.logs, environment=variables) as server:
        yield server
