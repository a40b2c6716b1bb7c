"""Build the inference engines of a bundle ahead of time, so that the first replica finds them in the cache."""

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
from fusionray.runtime.config import ComputePrecision, RuntimeConfig
from fusionray.runtime.engine import EngineReport, open_engine

REFRESH_SECONDS = 0.5
CACHE_STATUS_TEXT = {"built": "built", "found": "found", "off": "not cached"}


@dataclass(frozen=True)
class CompiledModel:
    """One model in one precision, with its engine's report and the seconds that opening it took."""

    file: str
    report: EngineReport
    seconds: float

    def describe(self) -> str:
        """Describe it in one line."""
        runs = f"{self.report.provider}, {self.report.precision}, {self.report.library}"
        return f"{self.file}: {CACHE_STATUS_TEXT[self.report.cache]} in {self.seconds:.2f} s ({runs})"


def compile_bundle(
    bundle: Bundle, settings: RuntimeConfig, precisions: Sequence[ComputePrecision] = ()
) -> list[CompiledModel]:
    """Open every model of a bundle in each precision, or in that of the settings, exactly as serving opens it.

    Shows a progress bar; with TensorRT, an engine takes minutes.

    Raises: ValueError if the settings name no cache; ProviderUnavailable if a provider or precision does not run here;
        BundleInvalid.
    """
    if settings.cache is None:
        raise ValueError("cache: name the folder of compiled engines")
    files = [bundle.folder / name for name in bundle.description.models]
    wanted = [(path, precision) for precision in precisions or (settings.precision,) for path in files]
    done = []
    with (
        tqdm(total=len(wanted), desc="compile", unit="engine") as bar,
        run_in_background(lambda stop: refresh(bar, stop), "progress"),
    ):
        for path, precision in wanted:
            bar.set_postfix_str(f"{path.name} {precision}")
            begun = time.perf_counter()
            chosen = settings.model_copy(update={"precision": precision})
            report = open_engine(path, chosen, digest=bundle.description.files[path.name]).report
            if precision not in ("auto", report.precision) and not settings.allow_fallback:
                raise ProviderUnavailable(f"{path.name}: runs in {report.precision}, not in {precision}")
            done.append(CompiledModel(path.name, report, time.perf_counter() - begun))
            bar.update()
    return done


def refresh(bar: tqdm[Any], stop: threading.Event) -> None:
    """Redraw a progress bar, so that its clock advances while an engine is built."""
    while not stop.wait(REFRESH_SECONDS):
        bar.refresh()
