"""Build the inference engines of a bundle ahead of time, so that the first replica finds them in the cache."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tqdm import tqdm

from fusionray.background import run_in_background
from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import GENERATOR_NAME, PARSER_NAME, WeightPrecision
from fusionray.errors import ProviderUnavailable
from fusionray.runtime.config import AUTO, ComputePrecision, RuntimeConfig
from fusionray.runtime.engines.engine import EngineReport, InferenceEngine
from fusionray.runtime.engines.factory import open_engine, open_generator

REFRESH_SECONDS = 0.5
CACHE_STATUS_TEXT = {"built": "built", "found": "loaded from the cache", "off": "not cached"}


@dataclass(frozen=True)
class CompiledModel:
    """One model in one precision: its file, the report of its engine, and `seconds`: wall time to open it."""

    file: str
    report: EngineReport
    seconds: float

    def describe(self) -> str:
        """Format this result as one line for the terminal."""
        engine = f"{self.report.provider}, {self.report.precision}, {self.report.library}"
        return f"{self.file}: {CACHE_STATUS_TEXT[self.report.cache]} in {self.seconds:.2f} s ({engine})"


def compile_bundle(
    bundle: Bundle,
    settings: RuntimeConfig,
    precisions: Sequence[ComputePrecision] = (),
    *,
    variants: Sequence[WeightPrecision] = (),
) -> list[CompiledModel]:
    """Open the models that serving opens, with the same settings, which writes their engines to the cache.

    These are the required models of the bundle, the converter of its embeddings if it has one, and the given `variants`
    of its generator. Each is opened in each of the compute `precisions`, by default in that of the settings. Shows a
    progress bar: TensorRT takes minutes for an engine.

    Raises: ValueError if `settings.cache` is not set; ProviderUnavailable if a provider or precision does not run here;
        BundleInvalid, also if the bundle lacks a variant.
    """
    if settings.cache in (None, AUTO):
        raise ValueError("cache: is not set; give the folder in which to store compiled engines")
    models = list_models(bundle, variants)
    planned = [(*model, precision) for precision in precisions or (settings.precision,) for model in models]
    compiled = []
    with (
        tqdm(total=len(planned), desc="compile", unit="engine") as bar,
        run_in_background(lambda stop: redraw_bar(bar, stop), "progress"),
    ):
        for file, open_model, precision in planned:
            bar.set_postfix_str(f"{file} {precision}")
            started = time.perf_counter()
            model_settings = settings.model_copy(update={"precision": precision})
            report = open_model(model_settings).report
            if precision not in ("auto", report.precision) and not settings.allow_fallback:
                raise ProviderUnavailable(f"{file}: runs in {report.precision}, not in {precision}")
            compiled.append(CompiledModel(file, report, time.perf_counter() - started))
            bar.update()
    return compiled


def list_models(
    bundle: Bundle, variants: Sequence[WeightPrecision]
) -> list[tuple[str, Callable[[RuntimeConfig], InferenceEngine]]]:
    """List the files of the models that serving opens, each with a function that opens it.

    Raises: BundleInvalid if the bundle lacks a variant.
    """
    description = bundle.description
    converter = description.embedding.converter
    files = [name for name in description.models if name != GENERATOR_NAME]
    files += [*([converter] if converter else []), *([PARSER_NAME] if description.parser else [])]
    models: list[tuple[str, Callable[[RuntimeConfig], InferenceEngine]]] = [
        (file, partial(open_engine, bundle.folder / file, digest=description.files[file])) for file in files
    ]
    generators: list[WeightPrecision] = ["fp32", *variants]
    return models + [
        (bundle.generator_path_for(precision).name, partial(open_generator, bundle, precision=precision))
        for precision in dict.fromkeys(generators)
    ]


def redraw_bar(bar: tqdm[Any], stop: threading.Event) -> None:
    """Redraw a progress bar until `stop` is set, so that its clock advances while an engine is built."""
    while not stop.wait(REFRESH_SECONDS):
        bar.refresh()
