from __future__ import annotations

from typing import Any

import pytest
import torch

from fusionray.training.dry_run.footprint import Footprint, measure_step
from fusionray.training.engine.precision import Precision
from tests.support.tiny_fusion import build_config, build_pairs, build_recipe
from tests.support.toy_recipe import ToyRecipe, draw_numbers

CPU = torch.device("cpu")
FP32 = Precision("fp32", CPU)


def measure(batch: int = 2, precision: Precision = FP32, **settings: Any) -> Footprint:
    torch.manual_seed(0)
    activation_checkpointing = settings.pop("activation_checkpointing", False)
    return measure_step(
        build_recipe(build_config(**settings)),
        build_pairs(batch),
        precision,
        activation_checkpointing=activation_checkpointing,
    )


def test_flops_and_bytes_per_sample_do_not_depend_on_the_batch_size() -> None:
    two, six = measure(2), measure(6)
    assert six.flops == pytest.approx(two.flops, rel=0.02)
    assert six.activation_bytes == pytest.approx(two.activation_bytes, rel=0.05)
    assert six.input_bytes == pytest.approx(two.input_bytes, rel=0.05)
    for a, b in zip(two.phases, six.phases, strict=True):
        assert b.peak_bytes == pytest.approx(a.peak_bytes, rel=0.1)


def test_a_phase_with_an_interval_counts_in_proportion() -> None:
    every, lazy = measure(gradient_penalty_interval=1), measure(gradient_penalty_interval=4)
    penalty = every.phases[-1].flops
    assert penalty > 0
    assert every.flops - lazy.flops == pytest.approx(penalty * 3 / 4)


def test_activation_checkpointing_saves_memory_and_costs_flops() -> None:
    plain, checkpointed = measure(), measure(activation_checkpointing=True)
    assert checkpointed.phases[0].activation_bytes < 0.8 * plain.phases[0].activation_bytes
    assert checkpointed.flops > 1.1 * plain.flops


def test_bf16_reduces_activation_memory() -> None:
    assert measure(precision=Precision("bf16", CPU)).activation_bytes < 0.8 * measure().activation_bytes


def test_measuring_changes_no_weights_buffers_or_gradients() -> None:
    recipe = build_recipe()
    before = {name: {k: v.clone() for k, v in net.state_dict().items()} for name, net in recipe.networks.items()}
    measure_step(recipe, build_pairs(2), FP32)
    for name, network in recipe.networks.items():
        torch.testing.assert_close(dict(network.state_dict()), before[name], rtol=0, atol=0)
        assert all(parameter.grad is None and parameter.requires_grad for parameter in network.parameters())


def test_networks_are_described_with_ema_sharding_and_optimizer_states() -> None:
    footprint = measure()
    generator, discriminator = footprint.networks["generator"], footprint.networks["discriminator"]
    recipe = build_recipe()
    assert generator.parameters == sum(value.numel() for value in recipe.networks["generator"].parameters())
    assert footprint.trained_parameters == generator.parameters + discriminator.parameters
    assert generator.has_ema
    assert not discriminator.has_ema
    assert discriminator.cannot_shard  # its gradient penalty differentiates a gradient
    assert generator.largest_fsdp_unit < generator.parameters
    assert set(footprint.frozen) == {"identity"}
    assert generator.optimizer_values_per_parameter == 2


def test_sgd_with_momentum_keeps_one_value_per_parameter() -> None:
    footprint = measure_step(ToyRecipe("sgd"), draw_numbers(4), FP32)
    assert footprint.networks["first"].optimizer_values_per_parameter == 1
