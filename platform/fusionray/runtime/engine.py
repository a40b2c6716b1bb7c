"""A model that is ready to run, whatever library runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fusionray.bundle.bundle import hash_file
from fusionray.errors import BundleInvalid
from fusionray.hardware.device import has_nvidia_device
from fusionray.runtime.config import EngineName, Precision, RuntimeConfig

CacheUse = Literal["off", "built", "found"]


@dataclass(frozen=True)
class Port:
    """An input or output of a model: sizes that vary have names in place of numbers."""

    shape: tuple[int | str, ...]
    dtype: str


@dataclass(frozen=True)
class EngineReport:
    """What a model really runs on: the provider that takes the graph, all that are active, CPU threads, library.

    `precision` is what products are computed in, `cache` whether the engine was built into the cache or found there.
    """

    provider: str
    providers: tuple[str, ...]
    threads: int
    library: str
    precision: str = "fp32"
    cache: CacheUse = "off"


@dataclass(frozen=True)
class Model:
    """A model file, the sha256 of its content, and what its weights are stored in."""

    path: Path
    digest: str
    stored: Precision = "fp32"


class InferenceEngine(Protocol):
    """A loaded model. Calls from several threads at the same time are allowed."""

    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]
    report: EngineReport

    def run(self, outputs: Sequence[str], inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        """Compute the named outputs."""
        ...


def open_engine(
    path: str | Path,
    settings: RuntimeConfig | None = None,
    *,
    digest: str | None = None,
    stored: Precision = "fp32",
) -> InferenceEngine:
    """Open a model as the settings say; `digest` is the sha256 of the file where it is known already.

    Raises: ProviderUnavailable if what was asked for does not run here; BundleInvalid if the file is not a model.
    """
    settings = settings or RuntimeConfig()
    path = Path(path)
    if not path.is_file():
        raise BundleInvalid(f"{path}: there is no such model; copy or export the bundle again")
    # Only the cache asks which model it is.
    known = digest or (hash_file(path) if settings.cache is not None else "")
    model = Model(path, known, stored)
    # Each library takes a quarter of a second to load: one is enough.
    if choose_engine(settings) == "openvino":
        from fusionray.runtime.openvino_engine import OpenVinoEngine

        return OpenVinoEngine(model, settings)
    from fusionray.runtime.onnx_engine import OnnxEngine

    return OnnxEngine(model, settings)


def choose_engine(settings: RuntimeConfig) -> EngineName:
    """Choose the library: OpenVINO where less than float32 is asked of a CPU, else ONNX Runtime.

    In float32 ONNX Runtime is as fast or faster on our models, and bf16 on x86 it does not have: docs/runtime.md.
    """
    if settings.engine != "auto":
        return settings.engine
    on_cpu = settings.providers == "auto" and not has_nvidia_device()
    reduced = settings.precision in ("bf16", "fp16")
    return "openvino" if on_cpu and reduced and find_spec("openvino") is not None else "onnxruntime"
