"""A model on ONNX Runtime: TensorRT, CUDA or the CPU, its engine or optimised graph from the cache where there is one.

What concerns a GPU follows the documentation and is not measured.
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
from fusionray.runtime.engine import CacheUse, EngineReport, Model, Port
from fusionray.runtime.engine_cache import EngineCache, open_cache
from fusionray.runtime.providers import CPU, ON_A_GPU, TENSORRT, Computed, Shapes, choose_options, decide_precision
from fusionray.runtime.session import open_session, select_providers, tune

GRAPH_NAME = "graph.onnx"
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class OnnxEngine:
    """A model on ONNX Runtime.

    Raises: ProviderUnavailable if what was asked for does not run here; BundleInvalid if the file is not a model.
    """

    def __init__(self, model: Model, settings: RuntimeConfig) -> None:
        self.model = model
        self.settings = settings
        self.providers = select_providers(settings)
        self.gpu = find_gpu() if self.providers[0] in ON_A_GPU else None
        self.precision = self.settle_precision()
        self.session, cache = self.open()
        active = tuple(self.session.get_providers())
        self.on_gpu = active[0] in ON_A_GPU
        self.inputs = describe_ports(self.session.get_inputs())
        self.outputs = describe_ports(self.session.get_outputs())
        threads = self.session.get_session_options().intra_op_num_threads
        # What fell to the CPU, as allow_fallback lets it, computes there in what the file holds.
        computed = self.precision if active[0] == self.providers[0] else model.stored
        self.report = EngineReport(active[0], active, threads, f"onnxruntime {ort.__version__}", computed, cache)

    def run(self, outputs: Sequence[str], inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        """Compute the named outputs."""
        if self.on_gpu:
            return self.run_bound(outputs, inputs, "cuda")
        found: list[NDArray[np.float32]] = self.session.run(list(outputs), dict(inputs))
        return found

    def run_bound(
        self, outputs: Sequence[str], inputs: Mapping[str, NDArray[Any]], device: str
    ) -> list[NDArray[np.float32]]:
        """Compute with inputs copied to a device once and outputs that stay there until they are fetched once."""
        binding = self.session.io_binding()
        for name, value in inputs.items():
            placed = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value), device, 0)
            binding.bind_ortvalue_input(name, placed)
        for name in outputs:
            binding.bind_output(name, device, 0)
        self.session.run_with_iobinding(binding)
        found: list[NDArray[np.float32]] = binding.copy_outputs_to_cpu()
        return found

    def settle_precision(self) -> Computed:
        try:
            return decide_precision(self.settings, self.providers[0], self.gpu, self.model.stored)
        except ProviderUnavailable as refusal:
            if not self.settings.allow_fallback:
                raise
            warnings.warn(f"{refusal}; continuing in {self.model.stored}", RuntimeWarning, stacklevel=4)
            return self.model.stored

    def open(self) -> tuple[ort.InferenceSession, CacheUse]:
        cache = open_cache(self.settings)
        if cache is not None and self.providers == [CPU]:
            return self.open_graph(cache)
        # Where TensorRT cannot start there is nothing to build: the session says so, or falls back.
        if cache is not None and self.providers[0] == TENSORRT and self.gpu and tensorrt_version() is not None:
            return self.open_tensorrt(cache)
        return self.start(str(self.model.path)), "off"

    def open_graph(self, cache: EngineCache) -> tuple[ort.InferenceSession, CacheUse]:
        """Open the optimised graph: of what a start on the CPU takes, optimising is what can be kept."""
        made: list[ort.InferenceSession] = []

        def build(folder: Path) -> None:
            made.append(self.start(str(self.model.path), store_at=folder / GRAPH_NAME))

        try:
            entry = cache.obtain(self.key(), build)
            if made:
                return made[0], "built" if entry else "off"
            if entry is not None:
                with entry:
                    return self.start(entry.files[GRAPH_NAME].path, optimised=True), "found"
        except (BundleInvalid, KeyError) as error:
            # The storage may be full or gone; a model that is itself at fault is refused here in earnest.
            session = self.start(str(self.model.path))
            what = f"{cache.folder}: the optimised graph cannot be kept or used ({error})"
            warnings.warn(f"{what}; continuing without it", RuntimeWarning, stacklevel=4)
            return session, "off"
        return self.start(str(self.model.path)), "off"

    def open_tensorrt(self, cache: EngineCache) -> tuple[ort.InferenceSession, CacheUse]:
        """Open with an engine and timings from the cache; the provider reads them from a folder of this process."""
        shapes = self.read_shapes()

        def build(folder: Path) -> None:
            session = self.start(str(self.model.path), shapes=shapes, folder=str(folder))
            # Without a profile the engine is built in the first run.
            rows = {port.name: example(port, max(self.settings.batches, default=1)) for port in session.get_inputs()}
            session.run(None, rows)

        entry = cache.obtain(self.key(), build)
        was_built = entry is not None and entry.built
        if was_built:
            entry = cache.obtain(self.key(), build)
        if entry is None:
            return self.start(str(self.model.path), shapes=shapes), "off"
        # For as long as the engine lives: a batch beyond the profile makes the provider write there.
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
        store_at: Path | None = None,
        optimised: bool = False,
    ) -> ort.InferenceSession:
        options = tune(self.settings, self.providers)
        if store_at is not None:
            options.optimized_model_filepath = str(store_at)
        if optimised:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if TENSORRT in self.providers and shapes is None:
            shapes = self.read_shapes()
        chosen = {
            name: choose_options(name, self.settings, self.precision, shapes or {}, folder) for name in self.providers
        }
        allow_fallback = self.settings.allow_fallback
        return open_session(file, options, chosen, name=str(self.model.path), allow_fallback=allow_fallback)

    def read_shapes(self) -> Shapes:
        options = tune(self.settings, [CPU])
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = open_session(str(self.model.path), options, {CPU: {}}, name=str(self.model.path))
        return {name: port.shape for name, port in describe_ports(session.get_inputs()).items()}

    def key(self) -> dict[str, Any]:
        """Name everything that decides about what is built: another driver, library or CPU makes another entry."""
        on_gpu = self.providers[0] in ON_A_GPU
        return {
            "model": self.model.digest,
            "engine": f"onnxruntime {ort.__version__}",
            "libraries": [ort.cuda_version, tensorrt_version()] if on_gpu else [],
            "providers": self.providers,
            # The provider that runs takes the options as they are; those of the cache's folder are not among them.
            "options": {name: choose_options(name, self.settings, self.precision, {}) for name in self.providers},
            "precision": self.precision,
            "batches": self.settings.batches if on_gpu else (),
            "device": asdict(self.gpu) if self.gpu else asdict(describe_cpu()),
        }


def describe_ports(ports: Sequence[Any]) -> Mapping[str, Port]:
    return {port.name: Port(tuple(port.shape), port.type) for port in ports}


def example(port: Any, batch: int) -> NDArray[Any]:
    """Make zeros that a port takes; sizes that vary are the batch."""
    shape = [size if isinstance(size, int) else batch for size in port.shape]
    return np.zeros(shape, TYPES.get(port.type, np.float32))
