"""Groups of parameters: who decays, and who learns at which share of the rate."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fusionray.recipes.recipe import OptimizerConfig
from fusionray.training.engine import Engine
from fusionray.training.optimizers import build_optimizer
from fusionray.training.settings import EngineConfig
from tests.toy_recipe import ToyRecipe, draw_numbers


def build_network() -> nn.Module:
    return nn.ModuleDict({"identity": nn.Linear(2, 2), "generator": nn.Linear(2, 2)})


def shares_by_name(network: nn.Module, config: OptimizerConfig) -> dict[str, tuple[float, float]]:
    names = {parameter: name for name, parameter in network.named_parameters()}
    return {
        names[parameter]: (group["rate_share"], group["weight_decay"])
        for group in build_optimizer(network, config).param_groups
        for parameter in group["params"]
    }


def test_each_parameter_learns_at_the_share_of_the_longest_beginning_of_its_name() -> None:
    config = OptimizerConfig(weight_decay=0.1, rate_shares={"identity": 0.5, "identity.bias": 0.25})
    assert shares_by_name(build_network(), config) == {
        "identity.weight": (0.5, 0.1),
        "identity.bias": (0.25, 0.0),
        "generator.weight": (1.0, 0.1),
        "generator.bias": (1.0, 0.0),
    }


def test_a_share_that_nothing_has_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"rate_shares: no parameter's name begins with encoder"):
        build_optimizer(build_network(), OptimizerConfig(rate_shares={"encoder": 0.5, "identity": 0.5}))


def test_the_engine_steps_each_share_by_its_part_of_the_rate() -> None:
    def train(shares: dict[str, float]) -> dict[str, torch.Tensor]:
        recipe = ToyRecipe()
        recipe.optimizers = {
            name: settings.model_copy(update={"rate_shares": shares}) for name, settings in recipe.optimizers.items()
        }
        config = EngineConfig(global_batch=8, precision="fp32", clip_norm=1e9)
        engine = Engine(recipe, config, total_images=800, device=torch.device("cpu"), seed=0)
        before = {name: value.clone() for name, value in recipe.networks["first"].state_dict().items()}
        engine.step(draw_numbers(8))
        return {name: value - before[name] for name, value in recipe.networks["first"].state_dict().items()}

    whole, shared = train({}), train({"0.": 0.25})
    torch.testing.assert_close(shared["0.weight"], whole["0.weight"] * 0.25)
    torch.testing.assert_close(shared["2.weight"], whole["2.weight"])
