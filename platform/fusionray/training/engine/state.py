"""The state of an engine by name, for checkpoints: tensors of every kind, and a few counters.

Names: `networks.<network>.<key>`, `averages.` (EMA), `frozen.` (if it has weights), `adaptive.`,
`optimizers.<network>.<parameter>.<state>`, `scalers.<phase>.<key>`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from fusionray.errors import CheckpointMissing
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.optimizers.build import create_states, optimizer_tensors
from fusionray.training.engine.precision import load_scaler_state, scaler_state
from fusionray.training.engine.running_statistics import copy_statistics


def state_tensors(engine: Engine) -> dict[str, Tensor]:
    """Return all tensors of the state; all ranks must call it.

    Values may be sharded (DTensor), or exist on one rank only (optimiser states under zero).
    """
    agree_on_statistics(engine)
    found: dict[str, Tensor] = {}
    # A frozen module without parameters follows from the configuration, so it is not state.
    frozen = {name: module for name, module in engine.recipe.frozen.items() if any(True for _ in module.parameters())}
    for kind, modules in (
        ("networks", engine.networks),
        ("averages", engine.ema_networks),
        ("frozen", frozen),
        ("adaptive", engine.recipe.adaptive),
    ):
        for name, module in modules.items():
            found |= {f"{kind}.{name}.{key}": value for key, value in module.state_dict().items()}
    for name, optimizer in engine.optimizers.items():
        names: dict[Tensor, str] = {value: key for key, value in engine.networks[name].named_parameters()}
        for key, value in optimizer_tensors(optimizer, names).items():
            found[f"optimizers.{name}.{key}"] = value
    for name, scaler in engine.scalers.items():
        found |= {f"scalers.{name}.{key}": value for key, value in scaler_state(scaler).items()}
    return found


@torch.no_grad()
def agree_on_statistics(engine: Engine) -> None:
    """Copy rank 0's running statistics to all ranks, since each rank has seen other images."""
    if engine.num_ranks == 1:
        return
    for buffers in engine.statistics.buffers:
        # One message for those of one dtype.
        sent = torch.cat([buffer.flatten() for buffer in buffers])
        dist.broadcast(sent, src=0)
        parts = torch.split(sent, [buffer.numel() for buffer in buffers])
        torch._foreach_copy_(buffers, [part.view(buffer.shape) for part, buffer in zip(parts, buffers, strict=True)])
    for name, ema_network in engine.ema_networks.items():
        copy_statistics(engine.networks[name], to=ema_network)


def counters(engine: Engine) -> dict[str, int]:
    """Return all counters of the state; waits for the report of the newest step."""
    engine.settle()
    return {
        "images_seen": engine.images_seen,
        "num_steps": engine.num_steps,
        "bad_steps": engine.nonfinite_steps.in_a_row,
        "skipped_steps": engine.nonfinite_steps.total,
        "global_batch": engine.global_batch,
    }


def restore(engine: Engine, fill: Callable[[dict[str, Tensor]], Mapping[str, int]]) -> None:
    """Restore a state that any number of ranks saved under any strategy; all ranks must call it.

    `fill` writes into the tensors that it gets, and returns the counters.

    Raises: CheckpointMissing if the state belongs to other networks.
    """
    for optimizer in engine.optimizers.values():
        create_states(optimizer)
    tensors = state_tensors(engine)
    found = fill(tensors)
    if missing := sorted(counters(engine).keys() - found.keys()):
        raise CheckpointMissing(f"the checkpoint has no counter {missing[0]}: another version of fusionray wrote it")
    for name, scaler in engine.scalers.items():
        prefix = f"scalers.{name}."
        load_scaler_state(scaler, {key.removeprefix(prefix): tensors[key] for key in tensors if key.startswith(prefix)})
    if not engine.global_batch:
        engine.batch_partition.set_global_batch(found["global_batch"])
    engine.images_seen, engine.num_steps = found["images_seen"], found["num_steps"]
    engine.nonfinite_steps.in_a_row, engine.nonfinite_steps.total = found["bad_steps"], found["skipped_steps"]
