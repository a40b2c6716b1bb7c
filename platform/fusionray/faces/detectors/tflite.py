"""Run a TFLite model on one CPU thread, and locate the models of the mediapipe package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fusionray.errors import DetectorUnavailable

_REMEDY = "pip install --no-deps mediapipe==0.10.21"


class TfliteModel:
    """A TFLite model with one input; it runs on one thread, because processes share the cores."""

    def __init__(self, path: Path) -> None:
        try:
            from ai_edge_litert.interpreter import Interpreter
        except ImportError as error:
            raise DetectorUnavailable(
                f"the default detector needs ai-edge-litert to run {path.name}: pip install ai-edge-litert ({error})"
            ) from error
        try:
            self._interpreter = Interpreter(str(path), num_threads=1)
            self._interpreter.allocate_tensors()
        except (ValueError, RuntimeError) as error:
            raise DetectorUnavailable(f"{path}: not a TFLite model that runs here ({error}); {_REMEDY}") from error
        self._input = self._interpreter.get_input_details()[0]["index"]
        self._outputs = [detail["index"] for detail in self._interpreter.get_output_details()]

    def run(self, batch: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Run the model on a float32 NHWC input; return its outputs in the file's order."""
        self._interpreter.set_tensor(self._input, batch)
        self._interpreter.invoke()
        return [self._interpreter.get_tensor(index) for index in self._outputs]


def locate_mediapipe_models(*names: str) -> list[Path]:
    """Find TFLite files below the installed mediapipe package, without importing it.

    Only the package's files are used, because its dependencies conflict with those of Ray and ONNX.

    Raises:
        DetectorUnavailable: the package is missing, or its version does not contain the files.
    """
    spec = find_spec("mediapipe")
    if spec is None or not spec.submodule_search_locations:
        raise DetectorUnavailable(f"the default face detector's model files are not installed: {_REMEDY}")
    root = Path(next(iter(spec.submodule_search_locations))) / "modules"
    paths = [root / name for name in names]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise DetectorUnavailable(f"the installed mediapipe does not contain {', '.join(missing)}: {_REMEDY}")
    return paths
