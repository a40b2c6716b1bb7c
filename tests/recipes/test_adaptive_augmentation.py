"""Augmentation of what the discriminator sees, and the probability that follows how surely it recognises real ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from fusionray.nets.pixels import to_float
from fusionray.recipes.adaptive_augmentation import AdaptiveAugmentation, AdaptiveAugmentationConfig
from fusionray.recipes.face_fusion.recipe import FaceFusionRecipe, FusionInput
from fusionray.recipes.losses import adversarial_discriminator_loss, adversarial_generator_loss
from fusionray.recipes.recipe import PhaseInput
from tests.support.tiny_fusion import NO_LOSS, SIZE, STILL, build_config, build_pairs, build_recipe

NOTHING: dict[str, Any] = {
    "mirror": False,
    "rotation_degrees": 0,
    "scale": 0,
    "shift": 0,
    "brightness": 0,
    "contrast": 0,
    "saturation": 0,
    "hue": 0,
}


def build(probability: float = 0.0, **settings: Any) -> AdaptiveAugmentation:
    module = AdaptiveAugmentation(AdaptiveAugmentationConfig(**{"target_real_sign": 0.6, **settings}))
    module.probability.fill_(probability)
    return module


def draw(count: int = 4, size: int = 24) -> Tensor:
    torch.manual_seed(0)
    return torch.rand(count, 3, size, size) * 2 - 1


def adaptive_recipe(probability: float, weights: dict[str, float] | None = None, **settings: Any) -> FaceFusionRecipe:
    chosen = AdaptiveAugmentationConfig(**{"target_real_sign": 0.6, **settings})
    recipe = build_recipe(build_config(weights, augmentation=STILL, adaptive_augmentation=chosen))
    augmentation = recipe.adaptive["augmentation"]
    assert isinstance(augmentation, AdaptiveAugmentation)
    augmentation.probability.fill_(probability)
    return recipe


def still_input(picture: Tensor, reference: Tensor | None = None) -> FusionInput:
    torch.manual_seed(3)
    count = len(picture)
    return FusionInput(
        source_face=torch.rand(count, 3, 112, 112) * 2 - 1,
        target=picture,
        reference=picture if reference is None else reference,
        face_region=torch.rand(count, 1, SIZE, SIZE),
        same_identity=torch.ones(count, dtype=torch.bool),
        paired=False,
    )


@pytest.mark.parametrize(("sign", "wanted"), [(1.0, 0.48), (0.7, 0.48), (0.5, 0.32), (-1.0, 0.32)])
def test_the_probability_follows_the_sign_at_its_speed(sign: float, wanted: float) -> None:
    augmentation = build(0.4, images_to_full=1000, interval=1)
    # 80 images of 1000: 8 hundredths, however far from the target.
    for _ in range(10):
        augmentation.update(torch.tensor(sign), 8)
    assert float(augmentation.probability) == pytest.approx(wanted, abs=1e-6)


def test_the_mean_sign_of_an_interval_decides() -> None:
    augmentation = build(0.4, images_to_full=100, interval=4)
    for sign in (1.0, 1.0, 1.0):
        augmentation.update(torch.tensor(sign), 2)
    assert float(augmentation.probability) == pytest.approx(0.4)
    augmentation.update(torch.tensor(-1.0), 2)  # mean 0.5, below the target of 0.6
    assert float(augmentation.probability) == pytest.approx(0.4 - 8 / 100)


def test_a_nonfinite_step_is_ignored() -> None:
    augmentation = build(0.4, images_to_full=100, interval=2)
    augmentation.update(torch.tensor(torch.nan), 1)
    augmentation.update(torch.tensor(1.0), 1)
    assert float(augmentation.probability) == pytest.approx(0.42)
    for _ in range(2):
        augmentation.update(torch.tensor(torch.nan), 1)
    assert float(augmentation.probability) == pytest.approx(0.42)


@pytest.mark.parametrize(("sign", "bound"), [(1.0, 0.7), (-1.0, 0.0)])
def test_the_probability_stays_within_its_bounds(sign: float, bound: float) -> None:
    augmentation = build(0.4, images_to_full=10, interval=1, max_probability=0.7)
    for _ in range(3):
        augmentation.update(torch.tensor(sign), 8)
    assert float(augmentation.probability) == pytest.approx(bound)


def test_a_probability_that_would_leak_is_refused() -> None:
    with pytest.raises(ValidationError, match="max_probability"):
        AdaptiveAugmentationConfig(max_probability=0.9)


def test_neither_update_nor_augmentation_synchronises_with_the_device() -> None:
    # A fake tensor has no value: whatever asks for one, as `.item()` does, raises.
    with FakeTensorMode():
        augmentation = build(cutout=0.5)
        augmentation.update(torch.empty(()), 8)
        (changed,) = augmentation(torch.empty(2, 3, 16, 16))
        with pytest.raises(DataDependentOutputException):
            augmentation.probability.item()
    assert changed.shape == (2, 3, 16, 16)


def test_the_state_survives_a_round_trip_in_the_middle_of_an_interval() -> None:
    first = build(0.3, images_to_full=100, interval=3)
    first.update(torch.tensor(1.0), 4)
    first.update(torch.tensor(-1.0), 4)
    second = build(0.0, images_to_full=100, interval=3)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for augmentation in (first, second):
        augmentation.update(torch.tensor(1.0), 4)
    assert all(torch.equal(value, dict(second.named_buffers())[name]) for name, value in first.named_buffers())
    assert float(first.probability) == pytest.approx(0.3 - 12 / 100)


def test_with_probability_0_pictures_stay_as_they_are() -> None:
    picture = draw()
    torch.testing.assert_close(build(0.0, cutout=0.5)(picture)[0], picture, rtol=0, atol=1e-5)


@pytest.mark.parametrize("probability", [0.25, 0.8])
def test_each_row_is_changed_with_the_probability(probability: float) -> None:
    augmentation = build(probability, **{**NOTHING, "brightness": 0.5})
    picture = torch.zeros(2000, 3, 2, 2)
    changed = augmentation(picture)[0].abs().amax(dim=(1, 2, 3)) > 0
    assert float(changed.float().mean()) == pytest.approx(probability, abs=0.04)


def test_a_chosen_row_is_mirrored_half_of_the_time() -> None:
    picture = draw(1).expand(600, 3, 24, 24)
    changed = build(0.8, **{**NOTHING, "mirror": True})(picture)[0]
    straight = (changed - picture).abs().amax(dim=(1, 2, 3)) < 1e-4
    mirrored = (changed - picture.flip(-1)).abs().amax(dim=(1, 2, 3)) < 1e-4
    assert (straight ^ mirrored).all()
    assert float(mirrored.float().mean()) == pytest.approx(0.4, abs=0.06)


def test_changes_favour_no_direction() -> None:
    # Unfavoured, the likeliest picture remains the original: the generator is not taught to turn or to fade.
    torch.manual_seed(0)
    augmentation, count = build(0.8, mirror=False), 20_000
    chosen = torch.ones(count, 4, dtype=torch.bool)
    views_N23 = augmentation.draw_views(chosen)
    linear_N33, offset_N31 = augmentation.draw_colours(chosen)
    assert views_N23[:, 0, 1].mean().abs() < 0.01
    assert views_N23[:, :, 2].mean(dim=0).abs().max() < 0.01
    assert torch.linalg.det(views_N23[:, :, :2]).log2().mean().abs() < 0.01
    assert offset_N31.mean().abs() < 0.01
    assert (linear_N33 - linear_N33.transpose(1, 2)).mean(dim=0).abs().max() < 0.01
    assert torch.linalg.det(linear_N33).log2().mean().abs() < 0.05


def test_hue_and_saturation_leave_grey_alone_and_contrast_scales_all_colours() -> None:
    grey = draw()[:, :1].expand(4, 3, 24, 24)
    turned = build(1.0, **{**NOTHING, "hue": 0.5, "saturation": 1.0})(grey)[0]
    torch.testing.assert_close(turned, grey, rtol=0, atol=1e-5)
    picture = draw()
    ratio = build(1.0, **{**NOTHING, "contrast": 1.0})(picture)[0] / picture
    torch.testing.assert_close(ratio, ratio[:, :1, :1, :1].expand_as(ratio), rtol=1e-2, atol=1e-2)
    assert ratio.std() > 0.1


def test_hue_turns_colours_without_changing_their_strength() -> None:
    picture = draw()
    changed = build(1.0, **{**NOTHING, "hue": 0.5})(picture)[0]
    assert (changed - picture).abs().mean() > 0.1
    torch.testing.assert_close(changed.norm(dim=1), picture.norm(dim=1), rtol=0, atol=1e-4)
    torch.testing.assert_close(changed.mean(dim=1), picture.mean(dim=1), rtol=0, atol=1e-4)


def test_cutout_blanks_a_square() -> None:
    cut = build(1.0, **{**NOTHING, "cutout": 0.5})(torch.ones(64, 3, 20, 20))[0] == 0
    areas = cut[:, 0].sum(dim=(1, 2))
    assert int(areas.max()) <= 100
    assert int(areas.min()) >= 25  # a square about a corner


def test_all_pictures_of_a_call_are_changed_alike_and_rows_apart() -> None:
    picture = draw(1).expand(4, 3, 24, 24)
    first, second = build(0.8)(picture, picture)
    assert torch.equal(first, second)
    assert len({float(row.sum()) for row in first}) == 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_move_pixels(dtype: torch.dtype) -> None:
    augmentation, picture = build(0.8), draw()
    torch.manual_seed(5)
    (exact,) = augmentation(picture)
    torch.manual_seed(5)
    with torch.autocast("cpu", dtype=dtype):
        (cast,) = augmentation(picture)
    assert cast.dtype == torch.float32
    assert torch.equal(exact, cast)


def test_off_means_untouched_losses_and_an_untouched_random_stream() -> None:
    recipe = build_recipe(build_config({**NO_LOSS, "adversarial": 1.0}, augmentation=STILL))
    assert recipe.adaptive == {}
    step = PhaseInput(recipe.networks, recipe.frozen, still_input(draw(3, SIZE), draw(3, SIZE) * 0.5))
    before = torch.get_rng_state()
    generator_parts = recipe.generator_loss(step).parts
    discriminator_parts = recipe.discriminator_loss(step).parts
    assert torch.equal(torch.get_rng_state(), before)
    discriminator = recipe.networks["discriminator"]
    output = discriminator(torch.cat([step.batch.reference, step.shared["fused"]]))
    real, fake = (output._replace(logits=[v[part] for v in output.logits]) for part in (slice(0, 3), slice(3, 6)))
    assert torch.equal(discriminator_parts["discriminator"], adversarial_discriminator_loss(real, fake))
    wanted = adversarial_generator_loss(discriminator(step.shared["fused"]))
    assert torch.equal(generator_parts["adversarial"], wanted)
    assert "augmentation_probability" not in discriminator_parts
    recipe.adapt(discriminator_parts, 8)


def test_with_probability_0_the_losses_are_those_without_augmentation() -> None:
    step_input = still_input(draw(3, SIZE), draw(3, SIZE) * 0.5)
    totals = []
    for recipe in (adaptive_recipe(0.0), build_recipe(build_config(augmentation=STILL))):
        step = PhaseInput(recipe.networks, recipe.frozen, step_input)
        step.shared["fused"] = step_input.target * 0.9
        totals.append([recipe.discriminator_loss(step).total, recipe.gradient_penalty_loss(step).total])
    torch.testing.assert_close(totals[0], totals[1], rtol=1e-4, atol=1e-5)


def test_the_generator_learns_through_the_augmentation() -> None:
    recipe = adaptive_recipe(0.8, {**NO_LOSS, "adversarial": 1.0}, cutout=0.3)
    step = PhaseInput(recipe.networks, recipe.frozen, still_input(draw(3, SIZE)))
    recipe.generator_loss(step).total.backward()
    gradients = [parameter.grad for parameter in recipe.networks["generator"].parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    assert any(gradient.any() for gradient in gradients if gradient is not None)


def test_matched_features_are_of_pictures_that_were_changed_alike() -> None:
    recipe = adaptive_recipe(0.8, {**NO_LOSS, "feature_matching": 1.0})
    with torch.no_grad():
        recipe.networks["generator"].generator.head.bias[3] = -200  # the target is returned, and it is the reference
    step = PhaseInput(recipe.networks, recipe.frozen, still_input(draw(3, SIZE)))
    assert recipe.generator_loss(step).parts["feature_matching"] == 0


def test_the_penalty_applies_to_augmented_pictures() -> None:
    recipe = adaptive_recipe(0.8)
    step = PhaseInput(recipe.networks, recipe.frozen, still_input(draw(3, SIZE)))
    losses = recipe.gradient_penalty_loss(step)
    losses.total.backward()
    assert all(parameter.grad is not None for parameter in recipe.networks["discriminator"].parameters())
    plain = build_recipe(build_config(augmentation=STILL)).gradient_penalty_loss(step).parts["gradient_penalty"]
    assert losses.parts["gradient_penalty"] != plain


def test_a_discriminator_that_memorises_eight_pictures_gets_more_augmentation() -> None:
    recipe = adaptive_recipe(0.0, images_to_full=800, interval=4)
    real, fake = (to_float(build_pairs(8, seed=seed, same=0).target) for seed in (1, 2))
    step = PhaseInput(recipe.networks, recipe.frozen, still_input(real))
    step.shared["fused"] = fake  # of the same kind: nothing but the eight pictures themselves tells them apart
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(recipe.networks["discriminator"].parameters(), lr=1e-2)
    probabilities, signs = [], []
    for _ in range(120):
        losses = recipe.discriminator_loss(step)
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()
        parts = {name: value.detach() for name, value in losses.parts.items()}
        recipe.adapt(parts, num_images=8)
        signs.append(float(parts["discriminator_real_sign"]))
        probabilities.append(float(parts["augmentation_probability"]))
    assert probabilities[0] == 0
    assert max(signs) > 0.6
    assert probabilities[-1] > 0.1
