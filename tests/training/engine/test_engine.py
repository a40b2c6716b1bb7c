from __future__ import annotations

import copy
import dataclasses
from functools import partialmethod
from typing import Any

import pytest
import torch
from torch import nn

from fusionray.errors import CheckpointMissing, TrainingFailed
from fusionray.hardware.profiles import detect_profile
from fusionray.recipes.recipe import Losses, Phase, PhaseInput
from fusionray.training.config import EngineConfig
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.state import counters, restore, state_tensors
from fusionray.training.schedule import ema_decay
from tests.support.tiny_fusion import build_config, build_pairs, build_recipe
from tests.support.toy_recipe import CompilableRecipe, Numbers, ToyRecipe, draw_numbers

CPU = torch.device("cpu")


def build_engine(kind: str = "sgd", *, total_images: int = 1600, **settings: Any) -> Engine:
    chosen = {"global_batch": 16, "precision": "fp32", "clip_norm": 1e6, **settings}
    return Engine(ToyRecipe(kind), EngineConfig(**chosen), total_images=total_images, device=CPU)


def spoil(batch: Numbers, field: str) -> Numbers:
    spoiled = copy.deepcopy(batch)
    getattr(spoiled, field)[0] = torch.nan
    return spoiled


def weights(engine: Engine, name: str) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in engine.networks[name].state_dict().items()}


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_four_micro_batches_of_four_teach_what_one_of_sixteen_teaches(kind: str) -> None:
    whole, parts = build_engine(kind), build_engine(kind, batch_size=4)
    for step in range(4):
        batch = draw_numbers(16, seed=step)
        one, four = whole.step(batch), parts.step(batch)
        # Unscaled sums would be four times as large.
        assert four.grad_norms == pytest.approx(one.grad_norms, rel=1e-4)
        assert four.losses == pytest.approx(one.losses, rel=1e-4)
    for name in ("first", "second"):
        torch.testing.assert_close(weights(whole, name), weights(parts, name), rtol=1e-4, atol=1e-5)


def test_a_phase_runs_on_every_interval_th_step_only() -> None:
    engine = build_engine()
    ran = [set(engine.step(draw_numbers(16)).grad_norms) for _ in range(4)]
    both = {"fit_first", "fit_second"}
    assert ran == [both, {"fit_first"}, both, {"fit_first"}]


def test_a_network_that_is_not_trained_now_gets_no_gradient() -> None:
    engine = build_engine()
    engine.step(draw_numbers(16))
    before = weights(engine, "second")
    for parameter in engine.networks["second"].parameters():
        parameter.grad = None
    engine.step(draw_numbers(16))  # the second step trains the first network alone, through the second
    assert all(parameter.grad is None for parameter in engine.networks["second"].parameters())
    torch.testing.assert_close(weights(engine, "second"), before, rtol=0, atol=0)


def test_select_lets_one_network_learn_and_freezes_the_others() -> None:
    engine = build_engine()
    engine.passes.select("second")
    assert not any(parameter.requires_grad for parameter in engine.networks["first"].parameters())
    assert all(parameter.requires_grad for parameter in engine.networks["second"].parameters())
    assert not any(parameter.requires_grad for parameter in engine.recipe.frozen["watcher"].parameters())


def test_gradients_are_clipped_to_the_norm_asked_for() -> None:
    engine = build_engine(clip_norm=1e-3)
    before = weights(engine, "second")
    report = engine.step(draw_numbers(16))
    assert report.grad_norms["fit_second"] > 0.01
    moved = torch.cat([(weights(engine, "second")[key] - before[key]).flatten() for key in before]).norm()
    assert float(moved) == pytest.approx(1e-3 * report.learning_rates["second"], rel=1e-3)


@pytest.mark.parametrize(
    ("field", "phase", "other"), [("first", "fit_first", "second"), ("second", "fit_second", "first")]
)
def test_a_non_finite_gradient_leaves_its_network_as_it_was(field: str, phase: str, other: str) -> None:
    engine = build_engine("adamw")
    engine.step(draw_numbers(16))
    engine.step(draw_numbers(16))
    before = {name: weights(engine, name) for name in engine.networks}
    report = engine.step(spoil(draw_numbers(16), field))
    assert report.skipped == (phase,)
    torch.testing.assert_close(weights(engine, field), before[field], rtol=0, atol=0)
    assert not torch.equal(weights(engine, other)["0.weight"], before[other]["0.weight"])
    assert engine.nonfinite_steps.in_a_row == 1
    # Nothing of it is left: the next step is sound.
    assert engine.step(draw_numbers(16)).skipped == ()
    assert engine.nonfinite_steps.in_a_row == 0
    assert all(value.isfinite().all() for name in engine.networks for value in weights(engine, name).values())


def test_too_many_nonfinite_steps_in_a_row_end_the_training() -> None:
    engine = build_engine(max_nonfinite_steps=2)
    bad = spoil(draw_numbers(16), "first")
    engine.step(bad)
    engine.step(bad)
    with pytest.raises(TrainingFailed, match=r"3 steps in a row .*\(last: fit_first\) after 48 images; lower base_lr"):
        engine.step(bad)


def test_the_average_follows_the_weights_with_its_half_life() -> None:
    engine = build_engine(ema_half_life_images=64)
    expected = weights(engine, "first")
    for step in range(30):
        engine.step(draw_numbers(16, seed=step))
        decay = ema_decay(64, 16, 16 * (step + 1))
        expected = {key: decay * expected[key] + (1 - decay) * value for key, value in weights(engine, "first").items()}
    average = engine.inference_networks()["first"]
    torch.testing.assert_close(dict(average.state_dict()), expected, rtol=1e-4, atol=1e-6)
    assert not average.training
    # Of the second network no average was asked for.
    assert engine.inference_networks()["second"] is engine.networks["second"]


def test_without_a_half_life_the_average_is_the_network() -> None:
    engine = build_engine(ema_half_life_images=0)
    engine.step(draw_numbers(16))
    torch.testing.assert_close(dict(engine.ema_networks["first"].state_dict()), weights(engine, "first"))


@pytest.mark.parametrize("size", [1, 3, 5, 7, 16])
def test_parts_of_unequal_size_weigh_by_their_rows(size: int) -> None:
    whole, parts = build_engine(), build_engine(batch_size=size)
    batch = draw_numbers(16)
    one, many = whole.step(batch), parts.step(batch)
    assert many.losses == pytest.approx(one.losses, rel=1e-5)
    assert many.grad_norms == pytest.approx(one.grad_norms, rel=1e-5)


def keep(engine: Engine) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    return {name: value.detach().clone() for name, value in state_tensors(engine).items()}, counters(engine)


def give(engine: Engine, state: tuple[dict[str, torch.Tensor], dict[str, int]]) -> None:
    def fill(tensors: dict[str, torch.Tensor]) -> dict[str, int]:
        assert tensors.keys() == state[0].keys()
        for name, value in tensors.items():
            value.data.copy_(state[0][name])
        return state[1]

    restore(engine, fill)


@pytest.mark.parametrize(
    ("precision", "kind"), [("fp32", "adamw"), ("bf16", "muon"), ("fp16", "adamw"), ("fp16", "muon")]
)
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(precision: str, kind: str) -> None:
    def build() -> Engine:
        config = EngineConfig(global_batch=4, batch_size=2, precision=precision, ema_half_life_images=8)
        recipe = build_recipe(build_config(generator_optimizer={"kind": kind}))
        return Engine(recipe, config, total_images=64, device=CPU, seed=5)

    through = build()
    through.step(build_pairs(4, seed=0))
    state = keep(through)
    torch.manual_seed(999)  # whatever else drew numbers in between
    wanted = [through.step(build_pairs(4, seed=seed)).losses for seed in (1, 2)]
    resumed = build()
    give(resumed, state)
    torch.manual_seed(111)
    assert [resumed.step(build_pairs(4, seed=seed)).losses for seed in (1, 2)] == wanted
    assert counters(resumed) == counters(through)
    torch.testing.assert_close(keep(resumed)[0], keep(through)[0], rtol=0, atol=0)


def test_the_state_names_networks_averages_optimisers_and_what_has_weights_only() -> None:
    engine = Engine(build_recipe(), EngineConfig(global_batch=2, precision="fp16"), total_images=64, device=CPU)
    engine.step(build_pairs(2))
    names = state_tensors(engine).keys()
    kinds = {".".join(name.split(".")[:2]) for name in names}
    assert kinds >= {"networks.generator", "networks.discriminator", "averages.generator", "frozen.identity"}
    assert kinds >= {
        "optimizers.generator",
        "optimizers.discriminator",
        "scalers.generator",
        "scalers.gradient_penalty",
    }
    assert not any(name.startswith("frozen.augmentation") for name in names)
    assert "optimizers.generator.generator.stem.weight.exp_avg" in names


def test_counters_of_another_version_are_refused() -> None:
    engine = build_engine()
    with pytest.raises(CheckpointMissing, match="has no counter images_seen"):
        restore(engine, lambda tensors: {name: 0 for name in counters(engine) if name != "images_seen"})


def test_a_local_batch_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(AssertionError, match="a local batch has 16 images, not 8"):
        build_engine().step(draw_numbers(8))


def build_normed_engine(recipe: ToyRecipe | None = None) -> Engine:
    """Build an engine whose first network ends in a batch norm; it passes twice in a step."""
    recipe = recipe or ToyRecipe("adamw")
    recipe.networks["first"].append(nn.BatchNorm1d(1))
    return Engine(recipe, EngineConfig(global_batch=16, precision="fp32"), total_images=1600, device=CPU)


def test_running_statistics_of_a_skipped_step_are_restored() -> None:
    engine = build_normed_engine()
    engine.step(draw_numbers(16))
    before = weights(engine, "first")
    spoiled = draw_numbers(16)
    spoiled.x[0] = torch.nan
    assert "fit_first" in engine.step(spoiled).skipped
    assert not before["3.running_mean"].eq(0).all()
    torch.testing.assert_close(weights(engine, "first"), before, rtol=0, atol=0)
    assert engine.skipped_steps == 1


def test_the_state_includes_whether_the_newest_step_was_skipped() -> None:
    engine = build_engine()
    report = engine.step(spoil(draw_numbers(16), "first"))
    # As on a GPU, where the host looks at a step when it has given the next one.
    engine.nonfinite_steps.add(report)
    assert (counters(engine)["bad_steps"], counters(engine)["skipped_steps"]) == (2, 2)


def test_running_out_of_memory_before_the_first_phase_keeps_the_running_statistics_of_the_last_step() -> None:
    class Starving(ToyRecipe):
        calls = 0

        def prepare(self, batch: Numbers) -> Numbers:
            self.calls += 1
            if self.calls == 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return batch

    engine = build_normed_engine(Starving("adamw"))
    engine.step(draw_numbers(16))
    engine.step(draw_numbers(16))
    seen = int(weights(engine, "first")["3.num_batches_tracked"])
    engine.step(draw_numbers(16))
    assert engine.batch_size == 8
    # Each of two halves passes twice: what the step before noted was not taken back.
    assert int(weights(engine, "first")["3.num_batches_tracked"]) == seen + 4


def test_running_out_of_memory_within_a_phase_restores_running_statistics() -> None:
    engine = build_normed_engine()
    fit = engine.recipe.phases[0]
    lost: list[int] = []

    def run_out_once(step: PhaseInput[Numbers]) -> Losses:
        losses = fit.loss(step)
        if not lost:
            lost.append(len(step.batch))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return losses

    engine.recipe.phases = (dataclasses.replace(fit, loss=run_out_once), *engine.recipe.phases[1:])
    engine.step(draw_numbers(16))
    assert (lost, engine.batch_size) == ([16], 8)
    # Each of two halves passes twice.
    assert int(weights(engine, "first")["3.num_batches_tracked"]) == 4


def test_an_average_has_the_statistics_of_its_network() -> None:
    engine = build_normed_engine()
    engine.step(draw_numbers(16))
    average = engine.ema_networks["first"].state_dict()
    assert int(average["3.num_batches_tracked"]) == 2
    for name in ("3.running_mean", "3.running_var", "3.num_batches_tracked"):
        assert torch.equal(average[name], weights(engine, "first")[name]), name


@pytest.mark.parametrize(("setting", "name"), [("auto", None), ("fp32", "fp32"), ("fp16", "fp16"), ("tf32", "tf32")])
def test_precision_follows_the_setting_or_the_hardware(setting: str, name: str | None) -> None:
    engine = build_engine(precision=setting)
    assert engine.precision.name == (name or detect_profile(CPU).precision)
    assert all(scaler.is_enabled() == (setting == "fp16") for scaler in engine.scalers.values())


def test_the_loss_scale_falls_on_overflow_and_the_step_is_left_out() -> None:
    engine = build_engine(precision="fp16")
    before = weights(engine, "first")
    scale = engine.scalers["fit_first"].get_scale()
    report = engine.step(draw_numbers(16).map(lambda value: value * 1e5))
    assert report.skipped == ("fit_first", "fit_second")
    torch.testing.assert_close(weights(engine, "first"), before, rtol=0, atol=0)
    assert engine.scalers["fit_first"].get_scale() == scale / 2
    assert engine.step(draw_numbers(16)).skipped == ()
    assert not torch.equal(weights(engine, "first")["0.weight"], before["0.weight"])


# torch's own compiler still imports scripts, of which torch warns, and asks all inputs for their gradients.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_compiled_networks_learn_the_same_with_the_penalty_left_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    # All of torch.compile but the kernels, which would take half a minute.
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="aot_eager"))

    def penalise(step: PhaseInput[Numbers]) -> Losses:
        x = step.batch.x.detach().requires_grad_(True)
        judged = step.networks["second"](x)
        (gradient,) = torch.autograd.grad(judged.sum(), x, create_graph=True)
        return Losses(gradient.square().sum() + 0 * judged.sum(), {"penalty": gradient.square().sum()})

    def run(compiled: bool) -> list[dict[str, float]]:
        recipe = CompilableRecipe()
        recipe.phases = (*recipe.phases, Phase("penalise", "second", penalise, second_order=True))
        config = EngineConfig(global_batch=16, precision="fp32", clip_norm=1e6, compile=compiled)
        engine = Engine(recipe, config, total_images=1600, device=CPU)
        return [engine.step(draw_numbers(16, seed=step)).losses for step in range(3)]

    for compiled, eager in zip(run(compiled=True), run(compiled=False), strict=True):
        assert compiled == pytest.approx(eager, rel=1e-4)


def test_recomputed_activations_change_nothing_but_memory() -> None:
    def run(activation_checkpointing: bool) -> dict[str, float]:
        config = EngineConfig(global_batch=2, precision="fp32", activation_checkpointing=activation_checkpointing)
        engine = Engine(build_recipe(), config, total_images=64, device=CPU)
        return [engine.step(build_pairs(2, seed=seed)).losses for seed in (0, 1)][1]

    assert run(activation_checkpointing=True) == run(activation_checkpointing=False)


def test_the_fusion_recipe_learns_in_bf16_with_finite_float32_weights() -> None:
    config = EngineConfig(global_batch=2, precision="bf16")
    engine = Engine(build_recipe(), config, total_images=64, device=CPU)
    report = engine.step(build_pairs(2))
    assert report.skipped == ()
    for network in engine.networks.values():
        assert all(value.dtype is torch.float32 and value.isfinite().all() for value in network.parameters())
