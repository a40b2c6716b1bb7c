from __future__ import annotations

import pytest
import torch

from fusionray.data import synthetic
from fusionray.nets.identity import IDENTITY_SIZE
from fusionray.recipes.arcface_crop import ArcFaceCrop, crop_to_arcface_affine
from fusionray.recipes.identity import IdentityRecipe, IdentityRecipeConfig
from fusionray.recipes.recipe import Losses, PhaseInput
from fusionray.types import FaceBatch
from tests.support.tiny_fusion import ENCODER

SAME_PLACE = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])


def build_recipe(num_people: int = 4, *, traits_weight: float = 0.0, synthetic_faces: bool = False) -> IdentityRecipe:
    torch.manual_seed(0)
    config = IdentityRecipeConfig(encoder=ENCODER, traits_weight=traits_weight)
    return IdentityRecipe(
        config,
        num_people=num_people,
        face_view_23=crop_to_arcface_affine("arcface_128"),
        synthetic_faces=synthetic_faces,
    )


def draw_faces(count: int, size: int = 64, *, with_traits: bool = False) -> FaceBatch:
    torch.manual_seed(1)
    image = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)
    traits = synthetic.sample_identities(count, seed=7) if with_traits else None
    return FaceBatch(image, torch.arange(count) % 4, traits)


def compute_losses(recipe: IdentityRecipe, batch: FaceBatch) -> Losses:
    return recipe.phases[0].loss(PhaseInput(recipe.networks, recipe.frozen, recipe.prepare(batch)))


def test_the_face_of_an_arcface_128_crop_is_its_middle_112_columns_and_first_112_rows() -> None:
    image = torch.rand(2, 3, 128, 128)
    window = ArcFaceCrop(crop_to_arcface_affine("arcface_128"))
    torch.testing.assert_close(window(image), image[:, :, :112, 8:120], rtol=0, atol=1e-4)


def test_the_face_of_an_arcface_112_crop_is_the_crop() -> None:
    image = torch.rand(1, 3, 112, 112)
    torch.testing.assert_close(ArcFaceCrop(crop_to_arcface_affine("arcface_112"))(image), image, rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [64, 256, 512])
def test_the_same_face_is_cut_from_crops_of_every_size(size: int) -> None:
    axis = torch.linspace(-1, 1, 512)
    smooth = torch.stack([axis[None, :].expand(512, 512), axis[:, None].expand(512, 512), axis.outer(axis)])[None]
    window = ArcFaceCrop(crop_to_arcface_affine("arcface_128"))
    reduced = torch.nn.functional.adaptive_avg_pool2d(smooth, size)
    inside = (slice(None), slice(None), slice(4, -4), slice(4, -4))
    torch.testing.assert_close(window(reduced)[inside], window(smooth)[inside], rtol=0, atol=0.02)


def test_a_jitter_that_moves_nothing_changes_nothing() -> None:
    image = torch.rand(3, 3, 64, 64)
    window = ArcFaceCrop(crop_to_arcface_affine("arcface_128"))
    torch.testing.assert_close(window(image, SAME_PLACE.expand(3, 2, 3)), window(image), rtol=0, atol=1e-5)


def test_a_jitter_moves_the_face_by_what_it_says() -> None:
    image = torch.rand(1, 3, 112, 112)
    step = torch.tensor([[[1.0, 0.0, 5 / 112], [0.0, 1.0, 0.0]]])
    moved = ArcFaceCrop(SAME_PLACE)(image, step)
    torch.testing.assert_close(moved[:, :, :, :107], image[:, :, :, 5:], rtol=0, atol=1e-4)


def test_autocast_does_not_move_the_face() -> None:
    image = torch.rand(2, 3, 64, 64)
    window = ArcFaceCrop(crop_to_arcface_affine("arcface_128"))
    jitter = torch.tensor([[[1.01, 0.05, 0.02], [-0.05, 1.01, -0.01]]]).expand(2, 2, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = window(image, jitter)
    assert torch.equal(cast, window(image, jitter))


def test_the_loss_reaches_encoder_and_head() -> None:
    recipe = build_recipe()
    batch = recipe.prepare(draw_faces(8))
    assert batch.face.shape == (8, 3, IDENTITY_SIZE, IDENTITY_SIZE)
    losses = recipe.phases[0].loss(PhaseInput(recipe.networks, recipe.frozen, batch))
    losses.total.backward()
    still = [name for name, p in recipe.networks["classifier"].named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []
    assert 0 <= losses.parts["classification_accuracy"] <= 1


def test_reading_the_traits_of_synthetic_people_teaches_the_encoder() -> None:
    recipe = build_recipe(traits_weight=3.0, synthetic_faces=True)
    losses = compute_losses(recipe, draw_faces(8, with_traits=True))
    torch.testing.assert_close(losses.total, losses.parts["classification"] + 3.0 * losses.parts["traits"])
    losses.parts["traits"].backward()
    encoder = recipe.networks["classifier"].encoder
    still = [name for name, p in encoder.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


@pytest.mark.parametrize(("traits_weight", "synthetic_faces"), [(3.0, False), (0.0, True)])
def test_photographs_and_a_weight_of_nothing_have_no_traits_head(traits_weight: float, synthetic_faces: bool) -> None:
    recipe = build_recipe(traits_weight=traits_weight, synthetic_faces=synthetic_faces)
    losses = compute_losses(recipe, draw_faces(8, with_traits=synthetic_faces))
    assert recipe.networks["classifier"].traits is None
    assert "traits" not in losses.parts


def test_traits_are_learned_on_the_scale_of_the_population() -> None:
    recipe = build_recipe(traits_weight=1.0, synthetic_faces=True)
    people = synthetic.sample_identities(512, seed=11)
    standard = recipe.frozen["standard"](people)
    assert standard.shape == people.shape
    assert float(standard.mean(dim=0).abs().max()) < 0.3
    assert float(standard.std(dim=0).max()) < 1.3


def test_held_out_people_are_verified_from_crops_as_they_are() -> None:
    recipe = build_recipe()
    recipe.networks["classifier"].eval()
    batch = draw_faces(4)
    twice = FaceBatch(batch.image.repeat(2, 1, 1, 1), batch.label.repeat(2))
    metrics = recipe.summarise(recipe.measure(recipe.networks, twice))
    # The same picture twice is always nearer to itself than to another.
    assert metrics["verification_accuracy"] == 1.0
    assert metrics["verification_auc"] == 1.0
    assert recipe.summarise({}) == {}


def test_an_embedding_has_no_preview() -> None:
    recipe = build_recipe()
    assert recipe.preview(recipe.networks, draw_faces(2)) is None
