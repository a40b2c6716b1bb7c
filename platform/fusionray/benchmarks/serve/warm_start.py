"""Time to a replica's first answer with compiled engines in the cache, against compiling them."""

from __future__ import annotations

from collections.abc import Callable

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.serve.context import ServeBenchContext
from fusionray.benchmarks.start import measure_start


def measure_warm(context: ServeBenchContext, tick: Callable[[], None]) -> Findings:
    """Start processes with a full and with an empty cache."""
    figures = measure_start(context.bundle.folder, rounds=context.config.rounds)
    tick()
    return Findings(
        values={"warm_start_ratio": [figures.warm_start_ratio]},
        notes=[
            f"start to first answer: without a cache {figures.plain.seconds:.2f} s, cache empty "
            f"{figures.cold.seconds:.2f} s, cache full {figures.warm.seconds:.2f} s"
        ],
    )
