"""Train with less memory than a batch needs; run in a child, since the limit is the process's own."""

from __future__ import annotations

import json
import resource
import sys

import torch

from fusionray.hardware.memory import status_bytes
from fusionray.training.config import EngineConfig
from fusionray.training.engine.engine import Engine
from tests.support.toy_recipe import HUNGRY, HungryRecipe, draw_numbers

BATCH = 32
NUM_STEPS = 3


def train(room_bytes: int | None) -> dict[str, object]:
    """Take a few steps; from the second one on only `room_bytes` more of address space are to be had."""
    torch.set_num_threads(1)
    engine = Engine(HungryRecipe(), EngineConfig(global_batch=BATCH, precision="fp32", clip_norm=1e6), **HUNGRY)
    losses = []
    for step in range(NUM_STEPS):
        if step == 1 and room_bytes is not None:
            limit = status_bytes("VmSize") + room_bytes
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        losses.append(engine.step(draw_numbers(BATCH, seed=step)).losses["first"])
    return {"losses": losses, "batch_size": engine.batch_size, "notes": engine.notes, "images": engine.images_seen}


if __name__ == "__main__":
    print(json.dumps(train(int(sys.argv[1]))))
