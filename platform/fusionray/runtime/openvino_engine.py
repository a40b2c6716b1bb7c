"""A model on OpenVINO: the engine for bf16 on a CPU, where ONNX Runtime has only float32 (docs/runtime.md).

Programs are compiled for any batch, and beside it for each batch size that the settings name, which is faster.
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
from fusionray.runtime.config import Precision, RuntimeConfig
from fusionray.runtime.engine import CacheUse, EngineReport, Model, Port
from fusionray.runtime.engine_cache import open_cache

OPENVINO = "OpenVINO"
DEVICE = "CPU"
TELEMETRY = "openvino_telemetry"
HINTS: dict[Precision, str] = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
CAPABILITIES: dict[Precision, str] = {"fp32": "FP32", "bf16": "BF16", "fp16": "FP16"}
ANY_BATCH = 0


def load_openvino() -> Any:
    """Import OpenVINO without its telemetry.

    Raises: ProviderUnavailable if it is not installed.
    """
    if "openvino" not in sys.modules:
        if find_spec("openvino") is None:
            raise ProviderUnavailable("openvino is not installed; install fusionray[openvino], or ask for onnxruntime")
        # Its import alone writes an identifier into the home folder and sends an event to an analytics service, unless
        # this module is absent, for which it has a stub. It stays absent: parts of OpenVINO import it late.
        sys.modules.setdefault(TELEMETRY, None)  # type: ignore[arg-type]
    import openvino

    return openvino


class OpenVinoEngine:
    """A model on OpenVINO.

    Raises: ProviderUnavailable if the precision that was asked for does not run here; BundleInvalid if the file is not
        a model.
    """

    def __init__(self, model: Model, settings: RuntimeConfig) -> None:
        self.openvino = load_openvino()
        self.core = self.openvino.Core()
        self.model = model
        self.settings = settings
        self.precision = self.settle_precision()
        # Static programs double the memory of the weights: only those that are asked for.
        self.batches = (ANY_BATCH, *settings.batches)
        self.programs, cache = self.open()
        self.requests: dict[int, queue.SimpleQueue[Any]] = {batch: queue.SimpleQueue() for batch in self.programs}
        program = self.programs[ANY_BATCH]
        self.inputs = describe_ports(program.inputs)
        self.outputs = describe_ports(program.outputs)
        threads = int(program.get_property("INFERENCE_NUM_THREADS"))
        library = f"openvino {self.openvino.__version__.partition('-')[0]}"
        self.report = EngineReport(OPENVINO, (OPENVINO,), threads, library, self.precision, cache)

    def run(self, outputs: Sequence[str], inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        """Compute the named outputs."""
        rows = len(next(iter(inputs.values())))
        with self.borrow(rows if rows in self.programs else ANY_BATCH) as request:
            # Outputs are copied: the request's own memory is written to by whoever borrows it next.
            found = request.infer(dict(inputs), share_inputs=True, share_outputs=False)
            return [found[name] for name in outputs]

    @contextmanager
    def borrow(self, batch: int) -> Iterator[Any]:
        """Lend a request to one thread; there are as many as calls ever were under way at once."""
        idle = self.requests[batch]
        try:
            request = idle.get_nowait()
        except queue.Empty:
            request = self.programs[batch].create_infer_request()
        try:
            yield request
        finally:
            idle.put(request)

    def settle_precision(self) -> Precision:
        asked: Precision = "fp32" if self.settings.precision == "auto" else self.settings.precision
        if CAPABILITIES[asked] in self.core.get_property(DEVICE, "OPTIMIZATION_CAPABILITIES"):
            return asked
        what = f"{OPENVINO}: this CPU multiplies no {asked}"
        if not self.settings.allow_fallback:
            raise ProviderUnavailable(f"{what}; leave precision at auto, or set allow_fallback")
        warnings.warn(f"{what}; continuing in fp32, as allow_fallback says", RuntimeWarning, stacklevel=4)
        return "fp32"

    def open(self) -> tuple[dict[int, Any], CacheUse]:
        cache = open_cache(self.settings)
        made: dict[int, Any] = {}

        def build(folder: Path) -> None:
            made.update(self.compile())
            for batch, program in made.items():
                (folder / f"{batch}.blob").write_bytes(program.export_model().getbuffer())

        entry = cache.obtain(self.key(), build) if cache is not None else None
        if entry is None or made:
            return made or self.compile(), "built" if entry else "off"
        with entry:
            try:
                return {batch: self.load(entry.files[f"{batch}.blob"].read()) for batch in self.batches}, "found"
            except (RuntimeError, KeyError) as error:
                what = f"{self.model.path}: its program in {self.settings.cache} cannot be used ({error})"
                warnings.warn(f"{what}; continuing without it", RuntimeWarning, stacklevel=4)
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
            said = " ".join(str(error).split())
            raise BundleInvalid(f"{self.model.path}: OpenVINO cannot load it ({said}); export it again") from None

    def choose_options(self) -> dict[str, Any]:
        """Choose the options of a program; those of the settings win. Source: OpenVINO documentation, CPU device."""
        return {
            # Given on purpose: OpenVINO would take bf16 unasked on a CPU that has it.
            "INFERENCE_PRECISION_HINT": HINTS[self.precision],
            "INFERENCE_NUM_THREADS": self.settings.threads or count_cpus(),
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            # Replicas on one machine would all pin themselves to the same first CPUs.
            "ENABLE_CPU_PINNING": False,
            **self.settings.provider_options.get("openvino", {}),
        }

    def key(self) -> dict[str, Any]:
        """Name everything that decides about what is compiled; how many threads run it does not."""
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
    """Describe ports as ONNX Runtime would: sizes that vary have names."""
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
