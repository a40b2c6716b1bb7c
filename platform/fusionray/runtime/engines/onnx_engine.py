"""Run a model on ONNX Runtime with TensorRT, CUDA or the CPU; engines and optimised graphs come from the cache, if any.

The GPU paths follow the documentation of ONNX Runtime; they have not been measured.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from fusionray.errors import BundleInvalid, ProviderUnavailable
from fusionray.hardware.device import describe_cpu, find_gpu, tensorrt_version
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.engine import CacheStatus, EngineReport, ModelFile, Port
from fusionray.runtime.engines.engine_cache import EngineCache, open_cache
from fusionray.runtime.engines.providers import (
    CPU,
    GPU_PROVIDERS,
    TENSORRT,
    EffectivePrecision,
    Shapes,
    choose_device,
    choose_options,
    decide_precision,
)
from fusionray.runtime.engines.session import build_session_options, open_session, select_providers

GRAPH_NAME = "graph.onnx"
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class OnnxEngine:
    """An inference engine on ONNX Runtime.

    Raises: ProviderUnavailable if a provider or precision of the settings does not run here; BundleInvalid if the file
        is not a model.
    """

    def __init__(self, model: ModelFile, settings: RuntimeConfig) -> None:
        self.model = model
        self.settings = settings
        self.providers = select_providers(settings)
        self.gpu = find_gpu() if self.providers[0] in GPU_PROVIDERS else None
        self.precision = self.resolve_precision()
        self.session, cache = self.open()
        active = tuple(self.session.get_providers())
        self.on_gpu = active[0] in GPU_PROVIDERS
        self.device = choose_device(active[0], settings)
        self.inputs = describe_ports(self.session.get_inputs())
        self.outputs = describe_ports(self.session.get_outputs())
        threads = self.session.get_session_options().intra_op_num_threads
        # After a fallback to the CPU, the model computes in the precision of its weights.
        computed = self.precision if active[0] == self.providers[0] else model.weight_precision
        self.report = EngineReport(active[0], active, threads, f"onnxruntime {ort.__version__}", computed, cache)

    def run(self, outputs: Sequence[str], inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        """Return the named outputs, float32, for inputs by name."""
        if self.on_gpu:
            return self.run_bound(outputs, inputs, "cuda")
        found: list[NDArray[np.float32]] = self.session.run(list(outputs), dict(inputs))
        return found

    def run_bound(
        self, outputs: Sequence[str], inputs: Mapping[str, NDArray[Any]], device: str
    ) -> list[NDArray[np.float32]]:
        """Run with IO binding: inputs are copied to the device once, outputs are copied back once."""
        binding = self.session.io_binding()
        for name, value in inputs.items():
            placed = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value), device, self.device)
            binding.bind_ortvalue_input(name, placed)
        for name in outputs:
            binding.bind_output(name, device, self.device)
        self.session.run_with_iobinding(binding)
        found: list[NDArray[np.float32]] = binding.copy_outputs_to_cpu()
        return found

    def resolve_precision(self) -> EffectivePrecision:
        try:
            return decide_precision(self.settings, self.providers[0], self.gpu, self.model.weight_precision)
        except ProviderUnavailable as refusal:
            if not self.settings.allow_fallback:
                raise
            warnings.warn(f"{refusal}; continuing in {self.model.weight_precision}", RuntimeWarning, stacklevel=4)
            return self.model.weight_precision

    def open(self) -> tuple[ort.InferenceSession, CacheStatus]:
        cache = open_cache(self.settings, by_default=self.providers[0] == TENSORRT)
        if cache is not None and self.providers == [CPU]:
            return self.open_graph(cache)
        # If TensorRT cannot start, there is nothing to build: opening the session raises, or falls back.
        if cache is not None and self.providers[0] == TENSORRT and self.gpu and tensorrt_version() is not None:
            return self.open_tensorrt(cache)
        return self.start(str(self.model.path)), "off"

    def open_graph(self, cache: EngineCache) -> tuple[ort.InferenceSession, CacheStatus]:
        """Open the optimised graph: graph optimisation is the only part of a start on the CPU that can be cached."""
        built: list[ort.InferenceSession] = []

        def build(folder: Path) -> None:
            built.append(self.start(str(self.model.path), save_to=folder / GRAPH_NAME))

        try:
            entry = cache.get_or_build(self.key(), build)
            if built:
                return built[0], "built" if entry else "off"
            if entry is not None:
                with entry:
                    return self.start(entry.files[GRAPH_NAME].path, optimised=True), "found"
        except (BundleInvalid, KeyError) as error:
            # The storage may be full or gone. If the model itself is invalid, this start raises.
            session = self.start(str(self.model.path))
            problem = f"{cache.folder}: the optimised graph cannot be written or used ({error})"
            warnings.warn(f"{problem}; continuing without it", RuntimeWarning, stacklevel=4)
            return session, "off"
        return self.start(str(self.model.path)), "off"

    def open_tensorrt(self, cache: EngineCache) -> tuple[ort.InferenceSession, CacheStatus]:
        """Open with an engine and timings from the cache, which the provider reads from a folder of this process."""
        shapes = self.read_shapes()

        def build(folder: Path) -> None:
            session = self.start(str(self.model.path), shapes=shapes, folder=str(folder))
            # Without a profile, TensorRT builds the engine in the first run.
            rows = {port.name: make_zeros(port, max(self.settings.batches, default=1)) for port in session.get_inputs()}
            session.run(None, rows)

        entry = cache.get_or_build(self.key(), build)
        was_built = entry is not None and entry.built
        if was_built:
            entry = cache.get_or_build(self.key(), build)
        if entry is None:
            return self.start(str(self.model.path), shapes=shapes), "off"
        # Kept as long as the engine: for a batch beyond the profile, the provider writes to the folder.
        private = tempfile.mkdtemp(prefix="fusionray-engine-")
        weakref.finalize(self, shutil.rmtree, private, ignore_errors=True)
        with entry:
            entry.copy_to(Path(private))
        session = self.start(str(self.model.path), shapes=shapes, folder=private)
        return session, "built" if was_built else "found"

    def start(
        self,
        file: str,
        *,
        shapes: Shapes | None = None,
        folder: str | None = None,
        save_to: Path | None = None,
        optimised: bool = False,
    ) -> ort.InferenceSession:
        """Open a session on `file`: `folder` is TensorRT's cache, `save_to` the path to write the optimised graph to.

        `optimised`: the file holds an optimised graph already.
        """
        options = build_session_options(self.settings, self.providers)
        if save_to is not None:
            options.optimized_model_filepath = str(save_to)
        if optimised:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if TENSORRT in self.providers and shapes is None:
            shapes = self.read_shapes()
        chosen = {name: self.choose_options(name, shapes or {}, folder) for name in self.providers}
        allow_fallback = self.settings.allow_fallback
        return open_session(file, options, chosen, name=str(self.model.path), allow_fallback=allow_fallback)

    def choose_options(self, provider: str, shapes: Shapes, folder: str | None = None) -> dict[str, str]:
        quantized = self.model.quantized
        return choose_options(provider, self.settings, self.precision, shapes, folder, quantized=quantized)

    def read_shapes(self) -> Shapes:
        options = build_session_options(self.settings, [CPU])
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = open_session(str(self.model.path), options, {CPU: {}}, name=str(self.model.path))
        return {name: port.shape for name, port in describe_ports(session.get_inputs()).items()}

    def key(self) -> dict[str, Any]:
        """Return the parts of the cache key: everything that determines the engine, such as library, driver and CPU."""
        on_gpu = self.providers[0] in GPU_PROVIDERS
        return {
            "model": self.model.digest,
            "engine": f"onnxruntime {ort.__version__}",
            "libraries": [ort.cuda_version, tensorrt_version()] if on_gpu else [],
            "providers": self.providers,
            # All options of the providers, except the path of TensorRT's own cache.
            "options": {name: self.choose_options(name, {}) for name in self.providers},
            "precision": self.precision,
            "batches": self.settings.batches if on_gpu else (),
            "device": asdict(self.gpu) if self.gpu else asdict(describe_cpu()),
        }


def describe_ports(ports: Sequence[Any]) -> Mapping[str, Port]:
    return {port.name: Port(tuple(port.shape), port.type) for port in ports}


def make_zeros(port: Any, batch: int) -> NDArray[Any]:
    """Make an input of zeros; dynamic dimensions get the size `batch`."""
    shape = [size if isinstance(size, int) else batch for size in port.shape]
    return np.zeros(shape, TYPES.get(port.type, np.float32))
