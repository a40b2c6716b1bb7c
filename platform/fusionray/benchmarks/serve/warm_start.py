"""How soon a replica answers whose engines lie compiled in the cache, against one that compiles them."""

from __future__ import annotations

from collections.abc import Callable

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.serve.context import ServeBenchContext
from fusionray.benchmarks.start import measure_start


def measure_warm(scene: ServeBenchContext, tick: Callable[[], None]) -> Findings:
    """Start processes with the cache full and empty."""
    figures = measure_start(scene.bundle.folder, rounds=scene.config.rounds)
    tick()
    return Findings(
        values={"warm_start_ratio": [figures.warm_start_ratio]},
        notes=[
            f"start to first answer: without a cache {figures.plain.seconds:.2f} s, cache empty "
            f"{figures.cold.seconds:.2f} s, cache full {figures.warm.seconds:.2f} s"
        ],
    )
