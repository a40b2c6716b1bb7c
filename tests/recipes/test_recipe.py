from __future__ import annotations

import pytest

from fusionray.recipes.recipe import OptimizerConfig, Phase
from tests.support.tiny_fusion import NO_LOSS, build_config, build_recipe


def test_a_lazy_phase_beside_it_scales_rate_and_decays_as_published() -> None:
    config = OptimizerConfig(base_lr=0.002, betas=(0.5, 0.99), momentum=0.9, weight_decay=0.01)
    lazy = config.adjust_for_lazy_penalty(16)
    # StyleGAN2's own figures for its discriminator: 0.002 * 16 / 17, 0.99 ** (16 / 17).
    assert lazy.base_lr == pytest.approx(0.0018823529)
    assert lazy.betas == pytest.approx((0.520808, 0.990585), abs=1e-6)
    # Over 16 + 1 steps as much is forgotten as over 16.
    assert lazy.betas[1] ** 17 == pytest.approx(0.99**16)
    assert lazy.momentum**17 == pytest.approx(0.9**16)
    assert (lazy.kind, lazy.weight_decay) == (config.kind, config.weight_decay)
    assert OptimizerConfig(betas=(0.0, 0.99)).adjust_for_lazy_penalty(1).betas[0] == 0


def test_the_discriminator_alone_is_corrected_and_only_beside_a_penalty() -> None:
    config = build_config(gradient_penalty_interval=4)
    optimizers = build_recipe(config).optimizers
    assert optimizers["discriminator"] == config.discriminator_optimizer.adjust_for_lazy_penalty(4)
    assert optimizers["generator"] == config.generator_optimizer
    without = build_config({**NO_LOSS, "adversarial": 1.0})
    assert build_recipe(without).optimizers["discriminator"] == without.discriminator_optimizer


def test_the_penalty_alone_is_of_second_order() -> None:
    assert [phase.name for phase in build_recipe().phases if phase.second_order] == ["gradient_penalty"]
    assert not Phase("a", "b", lambda _: None).second_order  # type: ignore[arg-type, return-value]
