from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from fusionray.data import synthetic
from fusionray.metrics.attribute_reader import (
    EXPRESSION,
    GROUPS,
    LIGHT,
    POSE,
    READINGS,
    AttributeReader,
    select_attributes,
)
from fusionray.nets.identity import IDENTITY_SIZE
from fusionray.nets.pixels import to_uint8
from fusionray.recipes.arcface_crop import crop_to_arcface_affine
from fusionray.recipes.attributes import AttributesRecipe, AttributesRecipeConfig
from fusionray.recipes.recipe import Losses, PhaseInput
from fusionray.types import FaceBatch
from tests.support.tiny_fusion import ENCODER

SIZE = 32
# About where an aligned crop lies in its picture.
VIEW_23 = torch.tensor([[0.5, 0.0, 0.25], [0.0, 0.5, 0.25]])


def build_recipe(**settings: float) -> AttributesRecipe:
    torch.manual_seed(0)
    return AttributesRecipe(
        AttributesRecipeConfig(encoder=ENCODER, **settings), face_view_23=crop_to_arcface_affine("arcface_128")
    )


def reader_of(recipe: AttributesRecipe) -> AttributeReader:
    reader = recipe.networks["reader"]
    assert isinstance(reader, AttributeReader)
    return reader


def draw_faces(count: int, seed: int = 0, varied: Sequence[str] = synthetic.ATTRIBUTE_NAMES) -> FaceBatch:
    """Render people; attributes that are not `varied` are neutral."""
    people, attributes = synthetic.sample_identities(count, seed), synthetic.neutral_attributes(count)
    columns = [synthetic.ATTRIBUTE_NAMES.index(name) for name in varied]
    attributes[:, columns] = synthetic.sample_attributes(count, seed)[:, columns]
    view_N23 = VIEW_23.expand(count, 2, 3)
    image = to_uint8(synthetic.render(people, attributes, SIZE, view_N23) * 2 - 1)
    return FaceBatch(image, torch.arange(count), people, synthetic.attributes_in_crop(attributes, view_N23))


def attributes_of(batch: FaceBatch) -> Tensor:
    assert batch.attributes is not None
    return batch.attributes


def cut(batch: FaceBatch, size: int) -> Iterator[FaceBatch]:
    for start in range(0, len(batch), size):
        yield batch.map(lambda value: value[start : start + size])  # noqa: B023 - called at once


def compute_losses(recipe: AttributesRecipe, batch: FaceBatch) -> Losses:
    return recipe.phases[0].loss(PhaseInput(recipe.networks, recipe.frozen, recipe.prepare(batch)))


def column(values: Tensor, name: str) -> Tensor:
    return values[:, READINGS.index(name)]


def test_a_small_reader_learns_the_yaw_of_people_it_never_saw() -> None:
    recipe = build_recipe(min_resolution=1.0)
    reader = reader_of(recipe)
    known, unseen = draw_faces(256, varied=("yaw",)), draw_faces(64, seed=1, varied=("yaw",))
    optimizer = torch.optim.Adam(reader.parameters(), lr=3e-3)
    slow_down = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=8 * 8)
    for _ in range(8):
        for batch in cut(known, 32):
            optimizer.zero_grad()
            compute_losses(recipe, batch).total.backward()
            optimizer.step()
            slow_down.step()
    reader.eval()
    with torch.no_grad():
        readings = reader(recipe.faces.crop(unseen.image))
    wanted = reader.select(attributes_of(unseen))
    error_N = (column(readings, "yaw") - column(wanted, "yaw")).abs()
    # In degrees, by the reader alone: it brings the standard along.
    guessed_N = (column(wanted, "yaw") - column(wanted, "yaw").mean()).abs()
    assert error_N.mean() < 0.5 * guessed_N.mean()
    found = recipe.summarise(recipe.measure(recipe.networks, unseen))
    pose_error = (readings - wanted)[:, : len(POSE)].abs().mean()
    assert found["validation_pose_error"] == pytest.approx(float(pose_error), rel=1e-4)


def test_readings_are_the_parameters_of_the_world_by_name() -> None:
    assert set(READINGS) <= set(synthetic.ATTRIBUTE_NAMES)
    assert (*POSE, *EXPRESSION, *LIGHT) == READINGS == reader_of(build_recipe()).names
    attributes = synthetic.sample_attributes(3, seed=0)
    smile = attributes[:, synthetic.ATTRIBUTE_NAMES.index("smile")]
    assert torch.equal(column(select_attributes(attributes, READINGS), "smile"), smile)


def test_every_reading_is_learned_on_the_scale_of_the_population() -> None:
    attributes = synthetic.sample_attributes(512, seed=11)
    standardised = build_recipe().frozen["standard"](select_attributes(attributes, READINGS))
    assert float(standardised.mean(dim=0).abs().max()) < 0.3
    assert 0.7 < float(standardised.std(dim=0).min()) < float(standardised.std(dim=0).max()) < 1.3


def test_the_loss_reaches_encoder_and_head_and_is_logged_by_group() -> None:
    recipe = build_recipe()
    losses = compute_losses(recipe, draw_faces(8))
    losses.total.backward()
    still = [name for name, p in reader_of(recipe).named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []
    mean = sum(losses.parts[group] * len(names) for group, names in GROUPS.items()) / len(READINGS)
    torch.testing.assert_close(losses.total, mean)


def test_errors_are_degrees_of_pose_and_deviations_of_all_else() -> None:
    reader = reader_of(build_recipe())
    wanted = reader.select(synthetic.sample_attributes(4, seed=0))
    readings = wanted.clone()
    column(readings, "yaw").add_(torch.tensor([6.0, -3.0, 0.0, 0.0]))
    deviation = column(reader.standard.deviation[None], "smile")
    column(readings, "smile").add_(deviation * torch.tensor([0.0, 0.0, 2.0, 0.0]))
    errors = reader.measure_errors(readings, wanted)
    torch.testing.assert_close(errors["pose"], torch.tensor([2.0, 1.0, 0.0, 0.0]))
    torch.testing.assert_close(errors["expression"], torch.tensor([0.0, 0.0, 2 / len(EXPRESSION), 0.0]))
    assert not errors["light"].any()


def test_pictures_are_blurred_and_recoloured_a_little_but_neither_mirrored_nor_turned() -> None:
    recipe = build_recipe(min_resolution=0.25)
    axis = torch.linspace(-0.5, 0.5, SIZE)
    slope = to_uint8(axis[None, None, :, None] * 0.5 + axis[None, None, None, :]).expand(64, 3, SIZE, SIZE)
    parameters = synthetic.sample_attributes(64, seed=0)
    torch.manual_seed(0)
    face = recipe.prepare(FaceBatch(slope, torch.arange(64), attributes=parameters)).face
    plain = recipe.faces.crop(slope)
    assert face.shape == plain.shape == (64, 3, IDENTITY_SIZE, IDENTITY_SIZE)
    # A plane stays the plane that it is under every blur; mirrored or turned it would lie elsewhere.
    assert float((face - plain)[:, :, 8:-8, 8:-8].abs().max()) < 0.1
    checks = (torch.arange(SIZE)[:, None] + torch.arange(SIZE)) % 2 * 255
    board = checks.to(torch.uint8).expand(64, 3, SIZE, SIZE)
    contrast = recipe.prepare(FaceBatch(board, torch.arange(64), attributes=parameters)).face.std(dim=(1, 2, 3))
    assert contrast.min() < 0.5 * contrast.max()


def test_it_is_evaluated_on_held_out_people_and_has_no_preview() -> None:
    recipe = build_recipe()
    assert recipe.summarise({}) == {}
    found = recipe.summarise(recipe.measure(recipe.networks, draw_faces(4)))
    assert set(found) == {"validation_pose_error", "validation_expression_error", "validation_light_error"}
    assert recipe.preview(recipe.networks, draw_faces(2)) is None
