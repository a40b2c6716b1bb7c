"""Run a model on OpenVINO, which computes in bf16 on a CPU; ONNX Runtime has only float32 there (docs/runtime.md).

OpenVINO compiles a model for any batch size, and again for each size that the settings name, which runs faster.
"""

from __future__ import annotations

import io
import queue
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionray.errors import BundleInvalid, ProviderUnavailable
from fusionray.hardware.device import count_cpus, describe_cpu
from fusionray.runtime.config import ComputePrecision, RuntimeConfig
from fusionray.runtime.engines.engine import CacheStatus, EngineReport, ModelFile, Port
from fusionray.runtime.engines.engine_cache import open_cache

OPENVINO = "OpenVINO"
DEVICE = "CPU"
TELEMETRY = "openvino_telemetry"
HINTS: dict[ComputePrecision, str] = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
CAPABILITIES: dict[ComputePrecision, str] = {"fp32": "FP32", "bf16": "BF16", "fp16": "FP16"}
ANY_BATCH = 0


def load_openvino() -> Any:
    """Import OpenVINO without its telemetry.

    Raises: ProviderUnavailable if it is not installed.
    """
    if "openvino" not in sys.modules:
        if find_spec("openvino") is None:
            raise ProviderUnavailable("openvino is not installed; install fusionray[openvino], or ask for onnxruntime")
        # Without this entry, the import writes an identifier into the home folder and sends an event to an analytics
        # service. OpenVINO has a stub for a missing telemetry module. The entry stays: some parts import it later.
        sys.modules.setdefault(TELEMETRY, None)  # type: ignore[arg-type]
    import openvino

    return openvino


class OpenVinoEngine:
    """An inference engine on OpenVINO.

    Raises: ProviderUnavailable if OpenVINO is not installed or the CPU lacks the precision; BundleInvalid if the file
        is not a model.
    """

    def __init__(self, model: ModelFile, settings: RuntimeConfig) -> None:
        self.openvino = load_openvino()
        self.core = self.openvino.Core()
        self.model = model
        self.settings = settings
        self.precision = self.resolve_precision()
        # Each compiled model holds the weights again, so only the named batch sizes are compiled.
        self.batches = (ANY_BATCH, *settings.batches)
        self.compiled, cache = self.open()
        self.requests: dict[int, queue.SimpleQueue[Any]] = {batch: queue.SimpleQueue() for batch in self.compiled}
        any_batch = self.compiled[ANY_BATCH]
        self.inputs = describe_ports(any_batch.inputs)
        self.outputs = describe_ports(any_batch.outputs)
        threads = int(any_batch.get_property("INFERENCE_NUM_THREADS"))
        library = f"openvino {self.openvino.__version__.partition('-')[0]}"
        self.report = EngineReport(OPENVINO, (OPENVINO,), threads, library, self.precision, cache)

    def run(self, outputs: Sequence[str], inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        """Return the named outputs, float32, for inputs by name."""
        rows = len(next(iter(inputs.values())))
        with self.borrow_request(rows if rows in self.compiled else ANY_BATCH) as request:
            # Outputs are copied, because the next call overwrites the memory of the request.
            found = request.infer(dict(inputs), share_inputs=True, share_outputs=False)
            return [found[name] for name in outputs]

    @contextmanager
    def borrow_request(self, batch: int) -> Iterator[Any]:
        """Lend an inference request to one thread; make one if all are in use."""
        idle = self.requests[batch]
        try:
            request = idle.get_nowait()
        except queue.Empty:
            request = self.compiled[batch].create_infer_request()
        try:
            yield request
        finally:
            idle.put(request)

    def resolve_precision(self) -> ComputePrecision:
        asked: ComputePrecision = "fp32" if self.settings.precision == "auto" else self.settings.precision
        if CAPABILITIES[asked] in self.core.get_property(DEVICE, "OPTIMIZATION_CAPABILITIES"):
            return asked
        problem = f"{OPENVINO}: this CPU does not support {asked}"
        if not self.settings.allow_fallback:
            raise ProviderUnavailable(f"{problem}; leave precision at auto, or set allow_fallback")
        warnings.warn(f"{problem}; continuing in fp32, because allow_fallback is set", RuntimeWarning, stacklevel=4)
        return "fp32"

    def open(self) -> tuple[dict[int, Any], CacheStatus]:
        cache = open_cache(self.settings)
        built: dict[int, Any] = {}

        def build(folder: Path) -> None:
            built.update(self.compile())
            for batch, compiled in built.items():
                (folder / f"{batch}.blob").write_bytes(compiled.export_model().getbuffer())

        entry = cache.get_or_build(self.key(), build) if cache is not None else None
        if entry is None or built:
            return built or self.compile(), "built" if entry else "off"
        with entry:
            try:
                return {batch: self.load(entry.files[f"{batch}.blob"].read()) for batch in self.batches}, "found"
            except (RuntimeError, KeyError) as error:
                problem = f"{self.model.path}: its compiled model in the cache cannot be used ({error})"
                warnings.warn(f"{problem}; continuing without it", RuntimeWarning, stacklevel=4)
        return self.compile(), "off"

    def load(self, blob: bytes) -> Any:
        return self.core.import_model(io.BytesIO(blob), DEVICE, self.choose_options())

    def compile(self) -> dict[int, Any]:
        return {batch: self.compile_for(batch) for batch in self.batches}

    def compile_for(self, batch: int) -> Any:
        try:
            graph = self.core.read_model(str(self.model.path))
            if batch != ANY_BATCH:
                graph.reshape({port.any_name: [batch, *list(port.partial_shape)[1:]] for port in graph.inputs})
            return self.core.compile_model(graph, DEVICE, self.choose_options())
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise BundleInvalid(f"{self.model.path}: OpenVINO cannot load it ({reason}); export it again") from None

    def choose_options(self) -> dict[str, Any]:
        """Choose the options of a compiled model; those of the settings override them.

        Source: OpenVINO documentation, CPU device.
        """
        return {
            # By default, OpenVINO computes in bf16 on a CPU that supports it.
            "INFERENCE_PRECISION_HINT": HINTS[self.precision],
            "INFERENCE_NUM_THREADS": self.settings.threads or count_cpus(),
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            # With pinning, all replicas on a machine would use the same first CPUs.
            "ENABLE_CPU_PINNING": False,
            **self.settings.provider_options.get("openvino", {}),
        }

    def key(self) -> dict[str, Any]:
        """Return the parts of the cache key: everything that determines the compiled model; the threads do not."""
        options = {name: value for name, value in self.choose_options().items() if name != "INFERENCE_NUM_THREADS"}
        return {
            "model": self.model.digest,
            "engine": f"openvino {self.openvino.__version__}",
            "options": options,
            "precision": self.precision,
            "batches": self.batches,
            "device": asdict(describe_cpu()),
        }


def describe_ports(ports: Sequence[Any]) -> Mapping[str, Port]:
    """Describe ports as ONNX Runtime does: dynamic dimensions have names."""
    return {port.any_name: Port(describe_shape(port.partial_shape), describe_type(port.element_type)) for port in ports}


def describe_shape(shape: Any) -> tuple[int | str, ...]:
    return tuple(
        "N" if size.is_dynamic and axis == 0 else f"size_{axis}" if size.is_dynamic else size.get_length()
        for axis, size in enumerate(shape)
    )


def describe_type(element: Any) -> str:
    names = {"f32": "float", "f16": "float16", "bf16": "bfloat16"}
    name = element.get_type_name()
    return f"tensor({names.get(name, name)})"
