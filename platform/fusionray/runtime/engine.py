"""A model that is ready to run, whatever library runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fusionray.runtime.session import build_session, list_active
from fusionray.runtime.settings import RuntimeSettings


@dataclass(frozen=True)
class Port:
    """An input or output of a model: sizes that vary have names in place of numbers."""

    shape: tuple[int | str, ...]
    dtype: str


@dataclass(frozen=True)
class EngineReport:
    """What a model really runs on: the provider that takes the graph, all that are active, CPU threads, library."""

    provider: str
    providers: tuple[str, ...]
    threads: int
    library: str


class Engine(Protocol):
    """A loaded model. Calls from several threads at the same time are allowed."""

    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]
    report: EngineReport

    def run(self, outputs: Sequence[str], inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        """Compute the named outputs."""
        ...


class OnnxEngine:
    """A model on ONNX Runtime."""

    def __init__(self, path: Path, settings: RuntimeSettings) -> None:
        self.session = build_session(path, settings)
        self.inputs = describe_ports(self.session.get_inputs())
        self.outputs = describe_ports(self.session.get_outputs())
        self.report = EngineReport(*list_active(self.session))

    def run(self, outputs: Sequence[str], inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        """Compute the named outputs."""
        found: list[NDArray[np.float32]] = self.session.run(list(outputs), dict(inputs))
        return found


def describe_ports(ports: Sequence[Any]) -> Mapping[str, Port]:
    return {port.name: Port(tuple(port.shape), port.type) for port in ports}


def open_engine(path: str | Path, settings: RuntimeSettings | None = None) -> Engine:
    """Open a model as the settings say.

    Raises: ProviderUnavailable if what was asked for does not run here; BundleInvalid if the file is not a model.
    """
    return OnnxEngine(Path(path), settings or RuntimeSettings())
