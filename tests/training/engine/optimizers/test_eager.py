"""torch's optimisers without the import of torch._dynamo."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from fusionray.training.engine.optimizers.eager import EagerAdamW, EagerSGD

STEP_ONCE = """
import sys, torch
from fusionray.training.config import EngineConfig
from fusionray.training.engine.engine import Engine
from fusionray.checkpoint.writer import CheckpointWriter
from tests.support.toy_recipe import ToyRecipe, draw_numbers
for kind in ("adamw", "sgd", "muon"):
    engine = Engine(ToyRecipe(kind), EngineConfig(global_batch=4), total_images=8, device=torch.device("cpu"))
    engine.step(draw_numbers(4))
print(*[name for name in ("torch._dynamo", "torch.distributed.tensor", "sympy") if name in sys.modules])
"""


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (EagerAdamW, torch.optim.AdamW, {"lr": 0.1, "fused": True}),
        (EagerSGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    ],
)
def test_steps_are_those_of_torch(ours: Any, theirs: Any, settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    network = nn.Linear(5, 3)
    networks = {ours: network, theirs: copy.deepcopy(network)}
    optimizers = {kind: kind(each.parameters(), **settings) for kind, each in networks.items()}
    for _ in range(3):
        x = torch.randn(4, 5)
        for kind, each in networks.items():
            each(x).square().sum().backward()
            optimizers[kind].step()
            optimizers[kind].zero_grad()
    assert torch.equal(networks[ours].weight, networks[theirs].weight)
    assert networks[ours].weight.grad is None


def test_hooks_of_a_step_are_called() -> None:
    optimizer = EagerAdamW(nn.Linear(2, 2).parameters())
    called: list[bool] = []
    optimizer.register_step_post_hook(lambda *_: called.append(torch.is_grad_enabled()))
    optimizer.step()
    assert called == [True]


def test_a_step_imports_neither_dynamo_nor_sharded_tensors() -> None:
    ran = subprocess.run([sys.executable, "-c", STEP_ONCE], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []
