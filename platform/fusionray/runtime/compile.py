"""Build the engines of a bundle ahead of time, so that the first replica finds them in the cache."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from fusionray.background import run_in_background
from fusionray.bundle.bundle import Bundle
from fusionray.errors import ProviderUnavailable
from fusionray.runtime.config import Precision, RuntimeConfig
from fusionray.runtime.engine import EngineReport, open_engine

TICK_SECONDS = 0.5
SAID = {"built": "built", "found": "found", "off": "nothing kept"}


@dataclass(frozen=True)
class Compiled:
    """One model in one precision: what it runs on, whether it was built or found, and how long that took."""

    file: str
    report: EngineReport
    seconds: float

    def describe(self) -> str:
        """Say it in one line."""
        runs = f"{self.report.provider}, {self.report.precision}, {self.report.library}"
        return f"{self.file}: {SAID[self.report.cache]} in {self.seconds:.2f} s ({runs})"


def compile_bundle(bundle: Bundle, settings: RuntimeConfig, precisions: Sequence[Precision] = ()) -> list[Compiled]:
    """Open every model of a bundle in each precision, or in that of the settings, exactly as serving will.

    Draws a bar that goes on while an engine is built, which takes minutes with TensorRT.

    Raises: ValueError without a cache; ProviderUnavailable if what was asked for does not run here; BundleInvalid.
    """
    if settings.cache is None:
        raise ValueError("cache: name the folder that engines are kept in")
    files = [bundle.folder / name for name in bundle.description.models]
    wanted = [(path, precision) for precision in precisions or (settings.precision,) for path in files]
    done = []
    with (
        tqdm(total=len(wanted), desc="compile", unit="engine") as bar,
        run_in_background(lambda stop: tick(bar, stop), "progress"),
    ):
        for path, precision in wanted:
            bar.set_postfix_str(f"{path.name} {precision}")
            begun = time.perf_counter()
            chosen = settings.model_copy(update={"precision": precision})
            report = open_engine(path, chosen, digest=bundle.description.files[path.name]).report
            if precision not in ("auto", report.precision) and not settings.allow_fallback:
                raise ProviderUnavailable(f"{path.name}: runs in {report.precision}, not in {precision}")
            done.append(Compiled(path.name, report, time.perf_counter() - begun))
            bar.update()
    return done


def tick(bar: tqdm[Any], stop: threading.Event) -> None:
    while not stop.wait(TICK_SECONDS):
        bar.refresh()
