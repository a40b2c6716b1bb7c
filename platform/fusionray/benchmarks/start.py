"""Time from a replica's start to its first answer: without a cache, with an empty cache, and with a full one.

Every start is a new process. The time starts after the imports, which do not depend on the cache.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fusionray.bundle.bundle import read_bundle
from fusionray.errors import ServiceFailed
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.engine import Port
from fusionray.runtime.engines.factory import choose_engine, open_engine

CHILD = "import sys; from fusionray.benchmarks.start import answer; answer(*sys.argv[1:])"


@dataclass(frozen=True)
class StartTimes:
    """Seconds of one start: to check the bundle's files, to open both models, and to the first answer of both."""

    check_seconds: float
    open_seconds: float
    answer_seconds: float

    @property
    def seconds(self) -> float:
        """Return the total."""
        return self.check_seconds + self.open_seconds + self.answer_seconds


@dataclass(frozen=True)
class StartFigures:
    """Medians over the rounds: `plain` without a cache, `cold` with an empty one, `warm` with a full one."""

    plain: StartTimes
    cold: StartTimes
    warm: StartTimes
    rounds: int

    @property
    def warm_start_ratio(self) -> float:
        """Return the time of the warm start over that of the cold one."""
        return self.warm.seconds / self.cold.seconds


def measure_start(bundle: str | Path, settings: RuntimeConfig | None = None, *, rounds: int = 3) -> StartFigures:
    """Start new processes, alternating plain, cold and warm; the cache is in a temporary folder.

    Raises: ServiceFailed with the last line of a process that did not answer.
    """
    settings = settings or RuntimeConfig()
    starts: dict[str, list[StartTimes]] = {"plain": [], "cold": [], "warm": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="fusionray-start-") as folder:
            for kind, found in starts.items():
                found.append(start_once(bundle, settings, cache=None if kind == "plain" else folder))
    return StartFigures(**{kind: median_of(found) for kind, found in starts.items()}, rounds=rounds)


def start_once(bundle: str | Path, settings: RuntimeConfig, cache: str | None) -> StartTimes:
    """Start a process that answers once.

    Raises: ServiceFailed.
    """
    wanted = settings.model_copy(update={"cache": cache}).model_dump_json()
    # The child imports the package from where this process does.
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", CHILD, str(bundle), wanted],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    if done.returncode != 0:
        raise ServiceFailed(f"{bundle}: a start failed: {done.stderr.strip().splitlines()[-1:]}")
    return StartTimes(**json.loads(done.stdout.splitlines()[-1]))


def answer(location: str, settings_json: str) -> None:
    """Run in the new process: start as a replica does, answer once, and print the seconds as JSON."""
    settings = RuntimeConfig.model_validate_json(settings_json)
    import_library(settings)
    clock = [time.perf_counter()]
    bundle = read_bundle(location)
    clock.append(time.perf_counter())
    paths = (bundle.identity_path, bundle.generator_path)
    engines = [open_engine(path, settings, digest=bundle.description.files[path.name]) for path in paths]
    clock.append(time.perf_counter())
    for engine in engines:
        engine.run(list(engine.outputs), {name: example(port) for name, port in engine.inputs.items()})
    clock.append(time.perf_counter())
    parts = [later - earlier for earlier, later in itertools.pairwise(clock)]
    print(json.dumps(asdict(StartTimes(*parts))))


def example(port: Port) -> NDArray[np.float32]:
    """Make zeros for one input, batch 1."""
    return np.zeros([size if isinstance(size, int) else 1 for size in port.shape], np.float32)


def import_library(settings: RuntimeConfig) -> None:
    """Import the library of the settings, which `open_engine` would import lazily."""
    if choose_engine(settings) == "openvino":
        from fusionray.runtime.engines.openvino_engine import load_openvino

        load_openvino()
    else:
        import fusionray.runtime.engines.onnx_engine  # noqa: F401


def median_of(starts: Sequence[StartTimes]) -> StartTimes:
    """Return the start with the median total, so that its parts belong together."""
    middle = statistics.median_low(start.seconds for start in starts)
    return next(start for start in starts if start.seconds == middle)
