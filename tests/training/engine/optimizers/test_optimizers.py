"""Groups of parameters: who decays, and who does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fusionray.recipes.recipe import OptimizerConfig
from fusionray.training.engine.optimizers.build import build_optimizer, create_states, step_if


@pytest.mark.parametrize("kind", ["adamw", "muon", "sgd"])
def test_states_that_are_created_ahead_change_no_step(kind: str) -> None:
    settings = OptimizerConfig(kind=kind, betas=(0.5, 0.99), weight_decay=0.1)
    weights = []
    for ahead in (False, True):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))
        optimizer = build_optimizer(network, settings)
        if ahead:
            create_states(optimizer)
        for _ in range(2):
            for parameter in network.parameters():
                parameter.grad = torch.randn(parameter.shape)
            optimizer.step()
        weights.append(network.state_dict())
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=0)


def test_weights_decay_and_gains_and_biases_do_not() -> None:
    network = nn.ModuleDict({"linear": nn.Linear(2, 2), "norm": nn.BatchNorm1d(2)})
    names = {parameter: name for name, parameter in network.named_parameters()}
    optimizer = build_optimizer(network, OptimizerConfig(weight_decay=0.1))
    decay = {names[value]: group["weight_decay"] for group in optimizer.param_groups for value in group["params"]}
    assert decay == {"linear.weight": 0.1, "linear.bias": 0.0, "norm.weight": 0.0, "norm.bias": 0.0}
    before = network["linear"].weight.clone()
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert (network["linear"].weight.abs() < before.abs()).all()
    assert torch.equal(network["norm"].weight, torch.ones(2))


@pytest.mark.parametrize("kind", ["adamw", "muon", "sgd"])
def test_a_first_step_that_is_skipped_leaves_no_trace(kind: str) -> None:
    weights = []
    for skipped in (True, False):
        torch.manual_seed(0)
        network = nn.Conv2d(8, 8, 3)
        optimizer = build_optimizer(network, OptimizerConfig(kind=kind, betas=(0.5, 0.99), momentum=0.9))
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        if skipped:
            for parameter in network.parameters():
                parameter.grad = torch.full_like(parameter, torch.nan)
            step_if(optimizer, scaler, torch.tensor(1.0))
        for value in (0.5, -0.25):
            for parameter in network.parameters():
                parameter.grad = torch.full_like(parameter, value) + parameter.detach()
            step_if(optimizer, scaler, torch.tensor(0.0))
        weights.append(network.state_dict())
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)
