from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from fusionray.errors import CheckpointMissing, TrainingFailed
from fusionray.training.engine import Engine, choose_dtype, cpu_multiplies_bf16, mix_seed
from fusionray.training.schedule import average_decay
from fusionray.training.settings import EngineConfig
from tests.tiny_fusion import build_pairs, build_recipe
from tests.toy_recipe import Numbers, ToyRecipe, draw_numbers, split

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
    whole, parts = build_engine(kind), build_engine(kind, accumulate=4)
    for step in range(4):
        batch = draw_numbers(16, seed=step)
        one, four = whole.step([batch]), parts.step(split(batch, 4))
        # Unscaled sums would be four times as large.
        assert four.grad_norms == pytest.approx(one.grad_norms, rel=1e-4)
        assert four.losses == pytest.approx(one.losses, rel=1e-4)
    for name in ("first", "second"):
        torch.testing.assert_close(weights(whole, name), weights(parts, name), rtol=1e-4, atol=1e-5)


def test_a_phase_runs_on_every_interval_th_step_only() -> None:
    engine = build_engine()
    ran = [set(engine.step([draw_numbers(16)]).grad_norms) for _ in range(4)]
    both = {"fit_first", "fit_second"}
    assert ran == [both, {"fit_first"}, both, {"fit_first"}]


def test_a_network_that_is_not_trained_now_gets_no_gradient() -> None:
    engine = build_engine()
    engine.step([draw_numbers(16)])
    before = weights(engine, "second")
    for parameter in engine.networks["second"].parameters():
        parameter.grad = None
    engine.step([draw_numbers(16)])  # the second step trains the first network alone, through the second
    assert all(parameter.grad is None for parameter in engine.networks["second"].parameters())
    torch.testing.assert_close(weights(engine, "second"), before, rtol=0, atol=0)


def test_select_lets_one_network_learn_and_freezes_the_others() -> None:
    engine = build_engine()
    engine.select("second")
    assert not any(parameter.requires_grad for parameter in engine.networks["first"].parameters())
    assert all(parameter.requires_grad for parameter in engine.networks["second"].parameters())
    assert not any(parameter.requires_grad for parameter in engine.recipe.frozen["watcher"].parameters())


def test_gradients_are_clipped_to_the_norm_asked_for() -> None:
    engine = build_engine(clip_norm=1e-3)
    before = weights(engine, "second")
    report = engine.step([draw_numbers(16)])
    assert report.grad_norms["fit_second"] > 0.01
    moved = torch.cat([(weights(engine, "second")[key] - before[key]).flatten() for key in before]).norm()
    assert float(moved) == pytest.approx(1e-3 * report.learning_rates["second"], rel=1e-3)


@pytest.mark.parametrize(
    ("field", "phase", "other"), [("first", "fit_first", "second"), ("second", "fit_second", "first")]
)
def test_a_non_finite_gradient_leaves_its_network_as_it_was(field: str, phase: str, other: str) -> None:
    engine = build_engine("adamw")
    engine.step([draw_numbers(16)])
    engine.step([draw_numbers(16)])
    before = {name: weights(engine, name) for name in engine.networks}
    report = engine.step([spoil(draw_numbers(16), field)])
    assert report.skipped == (phase,)
    torch.testing.assert_close(weights(engine, field), before[field], rtol=0, atol=0)
    assert not torch.equal(weights(engine, other)["0.weight"], before[other]["0.weight"])
    assert engine.bad_steps == 1
    # Nothing of it is left: the next step is sound.
    assert engine.step([draw_numbers(16)]).skipped == ()
    assert engine.bad_steps == 0
    assert all(value.isfinite().all() for name in engine.networks for value in weights(engine, name).values())


def test_too_many_bad_steps_in_a_row_end_the_training() -> None:
    engine = build_engine(max_bad_steps=2)
    bad = spoil(draw_numbers(16), "first")
    engine.step([bad])
    engine.step([bad])
    with pytest.raises(TrainingFailed, match=r"3 steps in a row .*\(last: fit_first\) after 32 images; lower base_lr"):
        engine.step([bad])


def test_the_average_follows_the_weights_with_its_half_life() -> None:
    engine = build_engine(average_half_life_images=64)
    expected = weights(engine, "first")
    for step in range(30):
        engine.step([draw_numbers(16, seed=step)])
        decay = average_decay(64, 16, 16 * (step + 1))
        expected = {key: decay * expected[key] + (1 - decay) * value for key, value in weights(engine, "first").items()}
    average = engine.inference_networks()["first"]
    torch.testing.assert_close(dict(average.state_dict()), expected, rtol=1e-4, atol=1e-6)
    assert not average.training
    # Of the second network no average was asked for.
    assert engine.inference_networks()["second"] is engine.networks["second"]


def test_without_a_half_life_the_average_is_the_network() -> None:
    engine = build_engine(average_half_life_images=0)
    engine.step([draw_numbers(16)])
    torch.testing.assert_close(dict(engine.averages["first"].state_dict()), weights(engine, "first"))


def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one() -> None:
    def build() -> Engine:
        config = EngineConfig(global_batch=4, accumulate=2, precision="fp32", average_half_life_images=8)
        return Engine(build_recipe(), config, total_images=64, device=CPU, seed=5)

    def step(engine: Engine, number: int) -> dict[str, float]:
        return engine.step([build_pairs(2, seed=number), build_pairs(2, seed=number + 1)]).losses

    through = build()
    step(through, 0)
    state = copy.deepcopy(through.state_dict())
    torch.manual_seed(999)  # whatever else drew numbers in between
    wanted = step(through, 2)
    resumed = build()
    resumed.load_state_dict(state)
    torch.manual_seed(111)
    assert step(resumed, 2) == wanted
    assert resumed.images_seen == through.images_seen == 8
    for part in ("networks", "averages", "optimizers"):
        torch.testing.assert_close(resumed.state_dict()[part], through.state_dict()[part], rtol=0, atol=0)


def test_the_state_holds_nothing_but_tensors_and_plain_values(tmp_path: Any) -> None:
    engine = build_engine("adamw")
    engine.step([draw_numbers(16)])
    torch.save(engine.state_dict(), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    torch.testing.assert_close(loaded["networks"], engine.state_dict()["networks"], rtol=0, atol=0)


@pytest.mark.parametrize("damage", ["another shape", "a network is missing", "other averages", "no position"])
def test_a_foreign_state_is_refused(damage: str) -> None:
    state = copy.deepcopy(build_engine().state_dict())
    if damage == "another shape":
        state["networks"]["first"]["0.weight"] = torch.zeros(2, 2)
    elif damage == "a network is missing":
        del state["networks"]["second"]
    elif damage == "other averages":
        state["averages"] = {"generator": {}}
    else:
        del state["images_seen"]
    with pytest.raises(CheckpointMissing, match="does not fit these networks"):
        build_engine().load_state_dict(state)


def test_a_batch_that_does_not_divide_is_refused_naming_both_settings() -> None:
    with pytest.raises(ValueError, match=r"engine\.global_batch=16 does not divide .*engine\.accumulate=3"):
        build_engine(accumulate=3)


def test_precision_follows_the_setting_and_the_device() -> None:
    assert choose_dtype("fp32", CPU) is torch.float32
    assert choose_dtype("bf16", CPU) is torch.bfloat16
    assert choose_dtype("auto", CPU) is (torch.bfloat16 if cpu_multiplies_bf16() else torch.float32)


def test_the_fusion_recipe_learns_in_bf16_with_finite_float32_weights() -> None:
    config = EngineConfig(global_batch=2, precision="bf16")
    engine = Engine(build_recipe(), config, total_images=64, device=CPU)
    report = engine.step([build_pairs(2)])
    assert report.skipped == ()
    for network in engine.networks.values():
        assert all(value.dtype is torch.float32 and value.isfinite().all() for value in network.parameters())


def test_seeds_differ_by_run_position_and_rank() -> None:
    seeds = {mix_seed(seed, images, rank) for seed in range(5) for images in range(0, 640, 32) for rank in range(8)}
    assert len(seeds) == 5 * 20 * 8
    assert all(0 <= seed < 2**63 for seed in seeds)
