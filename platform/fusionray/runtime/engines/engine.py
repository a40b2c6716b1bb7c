"""The interface of an inference engine, and what engines say of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fusionray.runtime.config import ComputePrecision

CacheStatus = Literal["off", "built", "found"]


@dataclass(frozen=True)
class Port:
    """Shape and type of a model's input or output; a dynamic dimension has a name instead of a number."""

    shape: tuple[int | str, ...]
    dtype: str


@dataclass(frozen=True)
class EngineReport:
    """What a model actually runs on: its first active provider, all active ones, CPU threads, library and version.

    `precision` is that of matrix products; `cache` says whether the engine was built into the cache or found there.
    """

    provider: str
    providers: tuple[str, ...]
    threads: int
    library: str
    precision: str = "fp32"
    cache: CacheStatus = "off"


@dataclass(frozen=True)
class ModelFile:
    """A model file, the sha256 of its content, the precision of its weights, and whether it has int8 operators."""

    path: Path
    digest: str
    weight_precision: ComputePrecision = "fp32"
    quantized: bool = False


class InferenceEngine(Protocol):
    """A loaded model. Thread-safe."""

    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]
    report: EngineReport

    def run(self, outputs: Sequence[str], inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        """Return the named outputs, float32, for inputs by name."""
        ...
