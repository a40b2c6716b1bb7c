"""The fusion recipe, and the mistakes of public trainers that it must not make."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from fusionray.checkpoint.models import EncoderState
from fusionray.config import read_preset
from fusionray.config_presets import list_presets
from fusionray.data.synthetic import render_true_fusion
from fusionray.metrics.similarity import gradient_energy
from fusionray.nets.identity import IdentityEncoder
from fusionray.nets.pixels import elliptic_region, to_float
from fusionray.recipes.face_fusion.identity_perturbation import IdentityPerturbationConfig
from fusionray.recipes.face_fusion.recipe import FaceFusionRecipe, FusionInput
from fusionray.recipes.family import DatasetInfo
from fusionray.recipes.losses import structure_loss
from fusionray.recipes.recipe import Losses, PhaseInput
from fusionray.recipes.registry import find_family
from tests.support.tiny_fusion import ENCODER, EVERY_LOSS, NO_LOSS, SIZE, STILL, build_config, build_pairs, build_recipe

COLOURS_KEPT = dict.fromkeys(("brightness", "contrast", "saturation", "hue"), 0)
FUSION_PRESETS = [name for name in list_presets() if read_preset(name)["recipe"]["name"] == "face_fusion"]
GENERATOR_LOSSES = sorted(set(EVERY_LOSS) - {"gradient_penalty"})


def take_step(config_weights: dict[str, float], batch: FusionInput | None = None) -> tuple[Losses, PhaseInput, object]:
    recipe = build_recipe(build_config(config_weights))
    torch.manual_seed(1)
    prepared = batch if batch is not None else recipe.prepare(build_pairs(3))
    step = PhaseInput(recipe.networks, recipe.frozen, prepared)
    return recipe.generator_loss(step), step, recipe


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("preset", FUSION_PRESETS)
def test_augmentation_does_not_blur_the_reference(preset: str, paired: bool) -> None:
    # A warp, of the truth or of a photograph, is learned as what real pictures look like.
    torch.manual_seed(0)
    pairs = build_pairs(4)
    wanted = render_true_fusion(pairs)[0] if paired else to_float(pairs.target)
    # Colours may change, and gradients with them.
    changes = {**read_preset(preset)["recipe"].get("augmentation", {}), **COLOURS_KEPT}
    prepared = build_recipe(build_config(augmentation=changes, paired=paired)).prepare(pairs)
    everywhere = torch.ones_like(prepared.face_region)
    torch.testing.assert_close(
        gradient_energy(prepared.reference, everywhere), gradient_energy(wanted, everywhere), rtol=0.02, atol=0
    )


def has_gradient(network: nn.Module) -> bool:
    return any(parameter.grad is not None and bool(parameter.grad.any()) for parameter in network.parameters())


@pytest.mark.parametrize("name", GENERATOR_LOSSES)
def test_every_loss_of_the_generator_is_one_it_can_learn_from(name: str) -> None:
    # A loss computed under no_grad, or on a detached picture, is logged and never learned from.
    losses, step, _ = take_step({**NO_LOSS, name: 1.0})
    assert set(losses.parts) == {name}
    losses.total.backward()
    assert has_gradient(step.networks["generator"])


def test_the_total_is_the_weighted_sum_of_the_parts() -> None:
    weights = {name: float(index + 1) for index, name in enumerate(GENERATOR_LOSSES)}
    losses, _, _ = take_step({**NO_LOSS, **weights})
    assert set(losses.parts) == set(GENERATOR_LOSSES)
    wanted = sum(weights[name] * value for name, value in losses.parts.items())
    torch.testing.assert_close(losses.total, wanted)


def test_the_frozen_encoder_gets_no_gradient_and_does_not_change() -> None:
    losses, step, _ = take_step(EVERY_LOSS)
    encoder = step.frozen["identity"]
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    losses.total.backward()
    assert all(parameter.grad is None for parameter in encoder.parameters())
    # The running statistics too: an encoder in training mode drifts with every picture it sees.
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())


@pytest.mark.parametrize("phase_name", ["discriminator", "gradient_penalty"])
def test_the_discriminator_learns_and_the_generator_is_left_alone(phase_name: str) -> None:
    losses, step, recipe = take_step(EVERY_LOSS)
    del losses
    phase = next(phase for phase in recipe.phases if phase.name == phase_name)  # type: ignore[attr-defined]
    assert phase.trains == "discriminator"
    phase.loss(step).total.backward()
    assert has_gradient(step.networks["discriminator"])
    assert not has_gradient(step.networks["generator"])
    # The distributed wrapper waits for every parameter.
    assert all(parameter.grad is not None for parameter in step.networks["discriminator"].parameters())


def build_still_input(same_identity: list[bool]) -> FusionInput:
    torch.manual_seed(3)
    count = len(same_identity)
    return FusionInput(
        source_face=torch.rand(count, 3, 112, 112) * 2 - 1,
        target=torch.rand(count, 3, SIZE, SIZE) * 2 - 1,
        reference=torch.rand(count, 3, SIZE, SIZE) * 2 - 1,
        face_region=torch.rand(count, 1, SIZE, SIZE),
        same_identity=torch.tensor(same_identity),
        paired=False,
    )


def test_reconstruction_compares_the_fused_picture_with_the_target_on_same_person_rows() -> None:
    batch = build_still_input([True, False, True])
    losses, step, _ = take_step({**NO_LOSS, "reconstruction": 1.0}, batch)
    per_row = (step.shared["fused"] - batch.target).abs().mean(dim=(1, 2, 3))
    torch.testing.assert_close(losses.parts["reconstruction"], (per_row[0] + per_row[2]) / 3)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_generator_that_returns_the_target_reconstructs_perfectly_whatever_the_source(seed: int) -> None:
    recipe = build_recipe(build_config({**NO_LOSS, "reconstruction": 1.0}))
    batch = build_still_input([True, True])
    torch.manual_seed(seed)
    batch = FusionInput(
        torch.rand(2, 3, 112, 112), batch.target, batch.reference, batch.face_region, batch.same_identity, False
    )
    with torch.no_grad():
        recipe.networks["generator"].generator.head.bias[3] = -200  # mask 0: the output is the target
    losses = recipe.generator_loss(PhaseInput(recipe.networks, recipe.frozen, batch))
    assert losses.parts["reconstruction"] == 0


def test_rows_of_different_people_have_no_part_in_the_reconstruction() -> None:
    losses, _, _ = take_step({**NO_LOSS, "reconstruction": 1.0}, build_still_input([False, False]))
    assert losses.parts["reconstruction"] == 0


def test_the_rendered_truth_of_one_person_is_the_target_picture() -> None:
    batch = build_pairs(3, same=3)
    truth, region = render_true_fusion(batch)
    assert (truth - to_float(batch.target)).abs().max() <= 1 / 127.5
    assert region.shape == (3, 1, SIZE, SIZE)
    assert region.min() >= 0
    assert region.max() <= 1


def test_the_truth_of_two_people_shows_the_source_person_in_the_target_s_way() -> None:
    batch = build_pairs(2, same=0)
    truth, region = render_true_fusion(batch)
    difference = (truth - to_float(batch.target)).abs().mean(dim=1, keepdim=True)
    assert (difference * region).sum() / region.sum() > 0.02


def test_an_unpaired_face_is_where_the_shards_say() -> None:
    recipe = build_recipe(build_config(paired=False, augmentation=STILL))
    batch = build_pairs(3, same=3)
    region = torch.zeros(3, 1, SIZE, SIZE, dtype=torch.uint8)
    region[:, :, SIZE // 4 : SIZE // 2] = 255
    known = recipe.prepare(dataclasses.replace(batch, region=region))
    torch.testing.assert_close(known.face_region, (region > 0).float())
    guessed = recipe.prepare(batch)
    torch.testing.assert_close(guessed.face_region, elliptic_region(guessed.target))


def test_prepared_truth_moves_with_its_target() -> None:
    recipe = build_recipe()
    torch.manual_seed(0)
    prepared = recipe.prepare(build_pairs(3, same=3))
    assert prepared.paired
    # Both were turned, mirrored and coloured alike, or they would differ by far more than rounding.
    assert (prepared.target - prepared.reference).abs().mean() < 0.01
    assert prepared.source_face.shape == (3, 3, 112, 112)


def test_without_truth_the_reference_is_the_target() -> None:
    recipe = build_recipe()
    for prepared in (
        recipe.prepare(build_pairs(2, with_truth=False)),
        build_recipe(build_config(paired=False)).prepare(build_pairs(2)),
    ):
        assert not prepared.paired
        assert torch.equal(prepared.target, prepared.reference)


def test_the_truth_loss_is_learned_from_paired_rows_only() -> None:
    losses, _, _ = take_step({**NO_LOSS, "truth": 1.0, "mask": 1.0}, build_still_input([True]))
    assert "truth" not in losses.parts


@pytest.mark.parametrize("same", [[True, False], [False, False]])
def test_structure_is_learned_where_the_answer_is_known(same: list[bool]) -> None:
    batch = build_still_input(same)
    losses, step, _ = take_step({**NO_LOSS, "structure": 1.0}, batch)
    wanted = structure_loss(step.shared["fused"], batch.reference, batch.face_region, torch.tensor(same))
    torch.testing.assert_close(losses.parts["structure"].detach(), wanted)
    assert bool(wanted) == any(same)


FUSED_ALONE = IdentityPerturbationConfig(fused=True, brightness=0, contrast=0, saturation=0, hue=0, warp=0)


def perturbed_step(config: IdentityPerturbationConfig = FUSED_ALONE) -> tuple[FaceFusionRecipe, PhaseInput]:
    recipe = build_recipe(build_config({**NO_LOSS, "reconstruction": 1.0}, identity_perturbation=config))
    return recipe, PhaseInput(recipe.networks, recipe.frozen, build_still_input([True, False, True]))


def test_a_disguised_target_is_the_target_as_fused_with_somebody_else() -> None:
    recipe, step = perturbed_step()
    shown: list[Tensor] = []
    recipe.networks["generator"].register_forward_pre_hook(lambda _, inputs: shown.append(inputs[2]))
    recipe.generator_loss(step)
    source, target = step.batch.source_face, step.batch.target
    others = [2, 0, 1]
    with torch.no_grad():
        disguised = recipe.networks["generator"](source[others], step.frozen["identity"](source)[others], target).output
    assert not shown[1].requires_grad
    torch.testing.assert_close(shown[1][[0, 2]], disguised[[0, 2]])
    assert torch.equal(shown[1][1], target[1])


def test_a_disguise_without_fusion_changes_faces_of_one_person_alone() -> None:
    recipe, step = perturbed_step(IdentityPerturbationConfig(fused=False))
    shown: list[Tensor] = []
    recipe.networks["generator"].register_forward_pre_hook(lambda _, inputs: shown.append(inputs[2]))
    recipe.generator_loss(step)
    assert len(shown) == 1
    target = step.batch.target
    assert torch.equal(shown[0][1], target[1])
    assert all((shown[0][row] - target[row]).abs().max() > 0.01 for row in (0, 2))


def test_the_answer_to_a_disguised_target_is_the_target_itself() -> None:
    recipe, step = perturbed_step()
    losses = recipe.generator_loss(step)
    per_row = (step.shared["fused"] - step.batch.target).abs().mean(dim=(1, 2, 3))
    torch.testing.assert_close(losses.parts["reconstruction"], (per_row[0] + per_row[2]) / 3)


def test_rendered_answers_need_no_disguise() -> None:
    recipe = build_recipe(build_config(identity_perturbation=IdentityPerturbationConfig()))
    calls: list[int] = []
    recipe.networks["generator"].register_forward_hook(lambda *_: calls.append(1))
    step = PhaseInput(recipe.networks, recipe.frozen, recipe.prepare(build_pairs(2)))
    recipe.generator_loss(step)
    assert len(calls) == 2  # the fusion, and the way back of the cycle loss


def test_the_discriminator_is_trained_only_where_it_is_asked() -> None:
    names = [phase.name for phase in build_recipe(build_config({**NO_LOSS, "identity": 1.0})).phases]
    assert names == ["generator"]
    assert [phase.name for phase in build_recipe().phases] == ["generator", "discriminator", "gradient_penalty"]


def test_the_gradient_penalty_weighs_its_interval() -> None:
    recipes = [build_recipe(build_config(gradient_penalty_interval=interval)) for interval in (1, 8)]
    totals = []
    for recipe in recipes:
        torch.manual_seed(0)
        step = PhaseInput(recipe.networks, recipe.frozen, build_still_input([True]))
        totals.append(recipe.gradient_penalty_loss(step).total.detach())
    torch.testing.assert_close(totals[1], 8 * totals[0])


def test_evaluation_reports_the_fused_face_s_place_between_source_and_target() -> None:
    recipe = build_recipe(build_config(augmentation=STILL))
    with torch.no_grad():
        recipe.networks["generator"].generator.head.bias[3] = -200
    metrics = recipe.summarise(recipe.measure(recipe.networks, build_pairs(3, seed=1, same=0)))
    # An unchanged target is nearer to itself, and as far from the truth as it was.
    assert metrics["validation_nearer_to_source"] == 0
    assert metrics["validation_mask_mean"] == 0
    assert metrics["validation_l1_to_truth"] > 0
    assert recipe.summarise({}) == {}


def test_the_preview_shows_a_row_for_each_pair() -> None:
    recipe = build_recipe()
    grid = recipe.preview(recipe.networks, build_pairs(2))
    assert grid is not None
    assert grid.shape == (2, 5, 3, SIZE, SIZE)
    assert grid.dtype == torch.uint8
    unpaired = recipe.preview(recipe.networks, build_pairs(2, with_truth=False))
    assert unpaired is not None
    assert unpaired.shape[1] == 4


def test_the_elliptic_region_covers_the_middle_and_spares_the_corners() -> None:
    region: Tensor = elliptic_region(torch.empty(2, 3, 64, 64))
    assert region.shape == (2, 1, 64, 64)
    assert region[0, 0, 32, 32] > 0.99
    assert region[0, 0, 0, 0] < 0.05


@pytest.mark.parametrize(
    ("synthetic", "skin_regions", "skin"),
    [(True, False, "source"), (False, False, "target"), (False, True, "source")],
)
def test_a_model_that_learned_the_middle_of_faces_leaves_the_skin_to_the_head(
    synthetic: bool, skin_regions: bool, skin: str
) -> None:
    family = find_family("face_fusion")
    encoder = EncoderState(ENCODER.model_dump(mode="json"), IdentityEncoder(ENCODER).state_dict())
    dataset = DatasetInfo(SIZE, "arcface_128", 4, synthetic, skin_regions)
    recipe = family.build(build_config(), dataset, {"recipe.identity_encoder": encoder})
    assert family.describe(recipe)["all_skin"] == (skin == "source")
    assert family.export_recipe(recipe, "arcface_128").description["skin"] == skin
