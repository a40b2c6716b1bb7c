"""Any number of rows through a model, whatever number its graph was made for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fusionray.runtime.engine import InferenceEngine
from fusionray.runtime.pixels import FloatArray


def run_batches(
    engine: InferenceEngine, outputs: Sequence[str], inputs: Mapping[str, FloatArray], batch: int, *, fixed: bool
) -> list[FloatArray]:
    """Run a model on N rows, at most `batch` at a time; one of a `fixed` batch sees no other number.

    What lacks to a fixed batch is made up by repeating its last row, and cut off again.
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
