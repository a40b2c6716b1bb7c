"""Both sides of a ratio must compute the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusionray.benchmarks.train.bare_loop import BareLoop
from fusionray.benchmarks.train.engine_parts import WITHOUT_PENALTY
from fusionray.benchmarks.train.plain_recipe import PlainRecipe
from tests.support.tiny_bench import build_tiny_setup


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_bare_loop_learns_what_the_engine_learns(tmp_path: Path, precision: str) -> None:
    setup = build_tiny_setup(tmp_path, engine={"precision": precision})
    engine = setup.build_engine()
    bare = BareLoop(setup.build_recipe(), engine)
    for batch in setup.draw_batches(4, 3):
        losses = engine.step(batch).losses
        assert {name: float(value) for name, value in bare.step(batch).items()} == losses
    for name, network in engine.networks.items():
        for key, value in network.state_dict().items():
            assert torch.equal(bare.networks[name].state_dict()[key], value), f"{name}.{key}"
    for key, value in engine.ema_networks["generator"].state_dict().items():
        assert torch.equal(bare.ema_networks["generator"].state_dict()[key], value), key


def test_the_plain_recipe_asks_for_the_same_as_the_engine(tmp_path: Path) -> None:
    setup = build_tiny_setup(tmp_path, recipe=WITHOUT_PENALTY, engine={"precision": "fp32"})
    engine = setup.build_engine()
    plain = PlainRecipe(setup.build_recipe(), engine)
    before = {key: value.clone() for key, value in plain.recipe.networks["generator"].state_dict().items()}
    first, second = setup.draw_batches(4, 2)
    losses, found = engine.step(first).losses, plain.step(first)
    assert {"identity", "truth", "adversarial", "feature_matching", "discriminator"} <= found.keys() <= losses.keys()
    for name, value in found.items():
        assert float(value) == pytest.approx(losses[name], rel=1e-5), name
    assert any(
        not torch.equal(before[key], value) for key, value in plain.recipe.networks["generator"].state_dict().items()
    )
    # What its generator step leaves in the discriminator must not be learned: the second step would tell.
    engine.precision.apply_to_process()
    assert all(parameter.grad is None for parameter in plain.recipe.networks["discriminator"].parameters())
    plain.step(second)


def test_the_discriminator_learns_the_same_from_the_plain_recipe(tmp_path: Path) -> None:
    setup = build_tiny_setup(
        tmp_path, recipe=WITHOUT_PENALTY, engine={"precision": "fp32", "schedule": {"warmup_images": 0}}
    )
    engine = setup.build_engine()
    plain = PlainRecipe(setup.build_recipe(), engine)
    for batch in setup.draw_batches(4, 1):
        engine.step(batch)
        plain.step(batch)
    for key, value in engine.networks["discriminator"].state_dict().items():
        found = plain.recipe.networks["discriminator"].state_dict()[key]
        # Adam's first step is a sign: where a gradient is next to nothing, rounding may turn it.
        assert (found - value).abs().mean() < 1e-5, key
