"""`fusionray bench video`: measure the configured parts, write figures.json, report.html and report.md."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fusionray.benchmarks.findings import Findings, load_keys
from fusionray.benchmarks.results import BenchResult, write_result
from fusionray.benchmarks.serve.inputs import find_bundle
from fusionray.benchmarks.video.config import VideoBenchConfig, VideoPart
from fusionray.benchmarks.video.context import VideoBenchContext
from fusionray.benchmarks.video.processes import measure_memory, measure_resume, measure_segments
from fusionray.benchmarks.video.speed import measure_speed
from fusionray.benchmarks.video.steadiness import measure_following, measure_steadiness
from fusionray.environment import resolve_location
from fusionray.errors import ServiceFailed

MEASURES: dict[VideoPart, Callable[[VideoBenchContext, Callable[[], None]], Findings]] = {
    "speed": measure_speed,
    "memory": measure_memory,
    "segments": measure_segments,
    "resume": measure_resume,
    "steadiness": measure_steadiness,
    "following": measure_following,
}


def advance(bar: Any) -> None:
    bar.update()


def bench_video(config: VideoBenchConfig) -> BenchResult:
    """Measure the parts that `config` names, and write figures.json, report.html and report.md.

    Raises: ConfigInvalid, BundleInvalid.
    """
    config = config.model_copy(update={"output": resolve_location(config.output)})
    output = Path(config.output)
    output.mkdir(parents=True, exist_ok=True)
    keys = {name: key for name, key in load_keys("video").items() if key.part in config.parts}
    context = VideoBenchContext(config, find_bundle(config.bundle, config.preset, output))
    findings = Findings()
    for part in config.parts:
        own = [name for name, key in keys.items() if key.part == part]
        try:
            with tqdm(desc=f"bench {part}", unit=" measurements") as bar:
                findings.add(MEASURES[part](context, partial(advance, bar)))
        except ServiceFailed as error:
            findings.add(Findings(missing=dict.fromkeys(own, str(error))))
        # Written after each part, so that a failure later loses nothing.
        result = write_result(output, "video", keys, findings)
    return result
