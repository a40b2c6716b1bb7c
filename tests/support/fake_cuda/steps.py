"""Whole steps of the engine on a GPU that does not exist: `python -m tests.support.fake_cuda.steps LIBRARY CASES`.

A case, a line of JSON: `name`, `preset`, `overrides` (`KEY=VALUE`), `batch` (images), `paired`. Its answer, a line of
JSON: `name`, `precision`; `kernels` and `waits` of a usual step and of one with all phases; `operations` and
`lines`: the most frequent kernels, and the lines that start most of them.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support.fake_cuda.tensors import fake_cuda, install

GPU_BYTES = 80 * 2**30


def main() -> None:
    """Answer all cases."""
    install(sys.argv[1])
    import torch

    torch.set_num_threads(1)
    from fusionray.training.engine import engine  # noqa: F401 - imported once, before the processes part

    for line in Path(sys.argv[2]).read_text().splitlines():
        # A process each: torch's memory of tensors without values does not outlive many of them.
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with fake_cuda() as watch:
                    print(json.dumps(take_steps(json.loads(line), watch)), flush=True)
                status = 0
            finally:
                if status:
                    traceback.print_exc()
                os._exit(status)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"failed: {line}")


def take_steps(case: dict[str, Any], watch: Any) -> dict[str, Any]:
    """Take a usual step and one with all phases."""
    import torch

    from fusionray.hardware.profiles import match_nvidia
    from fusionray.training.engine.engine import Engine
    from fusionray.training.timing.clocks import HostClock

    recipe, batch, config = build(case)
    device = torch.device("cuda", 0)
    with (
        # Their events and figures are of a real device.
        mock.patch("fusionray.training.timing.step_timer.StreamClock", return_value=HostClock()),
        mock.patch("fusionray.training.engine.engine.memory_limit", return_value=GPU_BYTES),
    ):
        engine = Engine(recipe, config, total_images=10**6, device=device, profile=match_nvidia(9, 0))
        engine.step(batch)  # creates the states of the optimisers
        found = {"name": case["name"], "precision": engine.chosen.precision, "kernels": {}, "waits": {}}
        for name, number in (("usual", 1), ("all", 0)):
            engine.num_steps = number
            watch.start()
            engine.step(batch)
            found["kernels"][name] = sum(watch.kernels.values())
            found["waits"][name] = dict(watch.waits)
            found["lines"] = dict(watch.lines.most_common(12))
            found["operations"] = dict(watch.kernels.most_common(12))
    return found


def build(case: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Build the recipe, a batch on the CPU, and the settings of the engine, all with values."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    from fusionray.data import synthetic
    from fusionray.training.dry_run.dry_run import build_dry_recipe, load_dry_config
    from fusionray.types import FaceBatch, PairBatch, SyntheticTruth

    with _disable_current_modes():
        config = load_dry_config(None, case["overrides"], case["preset"])
        recipe, _ = build_dry_recipe(config)
        count = case["batch"]
        batch = config.family.dummy_batch(config, count)
        people, attributes = synthetic.sample_identities(count, seed=1), synthetic.sample_attributes(count, seed=2)
        if isinstance(batch, PairBatch) and case["paired"]:
            view = torch.eye(2, 3).expand(count, 2, 3).clone()
            batch = replace(batch, truth=SyntheticTruth(people, people, attributes, view))
        if isinstance(batch, FaceBatch):
            batch = replace(batch, traits=people)
        engine = config.engine.model_copy(
            update={"global_batch": count, "batch_size": None, "compile": False, "cuda_graphs": False}
        )
    return recipe, batch, engine


if __name__ == "__main__":
    main()
