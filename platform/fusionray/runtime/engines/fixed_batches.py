"""Run a model on any number of rows, also if its graph has a fixed batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fusionray.runtime.engines.engine import InferenceEngine
from fusionray.runtime.pixels import FloatArray


def run_batches(
    engine: InferenceEngine, outputs: Sequence[str], inputs: Mapping[str, FloatArray], batch: int, *, fixed: bool
) -> list[FloatArray]:
    """Run a model on N rows, at most `batch` at a time, or exactly `batch` if it is `fixed`; return its outputs.

    To fill a fixed batch, its last row is repeated; the outputs of repeated rows are removed.
    """
    count = len(next(iter(inputs.values())))
    parts: list[list[FloatArray]] = []
    for start in range(0, count, batch):
        rows = {name: values[start : start + batch] for name, values in inputs.items()}
        found = min(batch, count - start)
        if fixed and found < batch:
            filler = np.minimum(np.arange(batch), found - 1)
            rows = {name: values[filler] for name, values in rows.items()}
        parts.append([values[:found] for values in engine.run(outputs, rows)])
    return [np.concatenate(values) if len(parts) > 1 else values[0] for values in zip(*parts, strict=True)]
