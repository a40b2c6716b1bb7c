"""A face parser: the truth that it learns from, what randomisation leaves alone, and that it learns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fusionray.data import synthetic
from fusionray.nets.face_parser import FaceParser, FaceParserConfig, PartShares
from fusionray.nets.pixels import to_float, to_uint8
from fusionray.recipes.face_parsing.part_randomisation import PartRandomisation, RandomisationConfig
from fusionray.recipes.face_parsing.recipe import (
    CLOTHES,
    FACE,
    NECK,
    SKIN,
    FaceParsingConfig,
    FaceParsingRecipe,
    HeadsWithParts,
    RenderedHeads,
    render_truth,
)
from fusionray.recipes.recipe import PhaseInput

SIZE = 48
# Nothing is drawn at random: what goes in comes out.
STILL = {
    **dict.fromkeys(("recoloured", "bared", "exchanged", "covered", "grey", "light", "noise"), 0.0),
    **dict.fromkeys(("rotation_degrees", "zoom", "shift"), 0.0),
    "min_resolution": 1.0,
    "colours": {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0},
}


def draw_heads(count: int, seed: int = 0, zoom: float = 0.8) -> RenderedHeads:
    view = torch.tensor([[zoom, 0.0, (1 - zoom) / 2], [0.0, zoom, (1 - zoom) / 2]]).repeat(count, 1, 1)
    people, looks = synthetic.sample_identities(count, seed), synthetic.sample_attributes(count, seed)
    image = to_uint8(synthetic.render(people, looks, SIZE, view) * 2 - 1)
    return RenderedHeads(image, people, looks, view)


def randomise(heads: RenderedHeads, **changes: object) -> HeadsWithParts:
    torch.manual_seed(0)
    config = RandomisationConfig.model_validate({**STILL, **changes})
    return HeadsWithParts(*PartRandomisation(config, SKIN, CLOTHES)(to_float(heads.image), *render_truth(heads)))


def build_recipe(**settings: object) -> FaceParsingRecipe:
    torch.manual_seed(0)
    return FaceParsingRecipe(
        FaceParsingConfig.model_validate({"parser": {"channels": [12, 24]}, "randomisation": STILL, **settings})
    )


def test_pixels_outside_of_the_picture_are_unknown() -> None:
    heads = draw_heads(3, zoom=2.0)
    _, known = render_truth(heads)
    inside = torch.zeros(SIZE, SIZE)
    inside[SIZE // 4 : -SIZE // 4, SIZE // 4 : -SIZE // 4] = 1
    assert torch.equal(known, inside.expand(3, 1, SIZE, SIZE))


def test_without_changes_all_stays_but_may_be_mirrored() -> None:
    heads = draw_heads(6)
    parts, _ = render_truth(heads)
    made = randomise(heads)
    for row, picture in enumerate(to_float(heads.image)):
        mirrored = not torch.allclose(made.picture[row], picture, atol=1e-4)
        wanted = (picture, parts[row])
        for found, one in zip((made.picture[row], made.parts[row]), wanted, strict=True):
            assert torch.allclose(found.flip(-1) if mirrored else found, one, atol=1e-4)


def test_parts_move_with_the_picture_and_still_sum_to_one() -> None:
    heads = draw_heads(8)
    made = randomise(heads, rotation_degrees=30.0, zoom=0.3, shift=0.2)
    assert torch.allclose(made.parts.sum(1), torch.ones(8, SIZE, SIZE), atol=1e-4)
    # The face of the moved picture has the colour that it had: parts and picture moved alike.
    before, _ = render_truth(heads)
    colours = [mean_colour(to_float(heads.image), before), mean_colour(made.picture, made.parts)]
    assert (colours[0] - colours[1]).abs().max() < 0.15


def mean_colour(picture: Tensor, parts: Tensor) -> Tensor:
    face = (parts[:, FACE] > 0.9).float()[:, None]
    return (picture * face).sum((2, 3)) / face.sum((2, 3))


def test_all_skin_of_a_head_gets_nearly_the_same_colour() -> None:
    heads = draw_heads(16)
    made = randomise(heads, recoloured=1.0, colour=0.3)
    still = randomise(heads)
    parts = made.parts
    changes = [
        ((made.picture - still.picture) * parts[:, part][:, None]).sum((2, 3)) / parts[:, part].sum((1, 2))[:, None]
        for part in (FACE, NECK, CLOTHES)
    ]
    # Of two heads the crop shows no clothes.
    face, neck, clothes = (change[parts[:, CLOTHES].amax((1, 2)) > 0.9] for change in changes)
    assert len(face) > 8
    assert (face - neck).norm() < 0.5 * (face - clothes).norm()


def test_clothes_give_way_to_skin_below_the_neck() -> None:
    heads = draw_heads(16)
    made, still = randomise(heads, bared=1.0), randomise(heads)
    lost = still.parts[:, CLOTHES] - made.parts[:, CLOTHES]
    assert lost.min() > -1e-5
    assert torch.allclose(made.parts[:, NECK] - still.parts[:, NECK], lost, atol=1e-5)
    assert 0.1 < lost.sum() / still.parts[:, CLOTHES].sum() < 0.9
    others = [part for part in range(len(synthetic.PARTS)) if part not in {NECK, CLOTHES}]
    assert torch.equal(made.parts[:, others], still.parts[:, others])
    # What was bared has the colour of the neck.
    bare = (lost > 0.9).float()[:, None]
    shown = [row for row in range(16) if bare[row].sum() > 20]
    neck = (still.parts[:, NECK] > 0.9).float()[:, None]
    colours = [(made.picture * where).sum((2, 3)) / where.sum((2, 3)) for where in (bare, neck)]
    assert len(shown) > 4
    assert (colours[0] - colours[1])[shown].abs().mean() < 0.1


def test_what_comes_in_front_of_a_face_is_background() -> None:
    heads = draw_heads(24)
    covered, still = randomise(heads, covered=1.0), randomise(heads)
    changed = (covered.picture - still.picture).abs().amax(1) > 0.2
    assert changed.float().mean() > 0.02
    assert covered.parts[:, 0][changed].mean() > 0.8
    assert torch.allclose(covered.parts.sum(1), torch.ones(24, SIZE, SIZE), atol=1e-4)


def test_an_exchanged_background_leaves_the_head_alone() -> None:
    heads = draw_heads(8)
    made, still = randomise(heads, exchanged=1.0), randomise(heads)
    background = still.parts[:, 0]
    difference = (made.picture - still.picture).abs().amax(1)
    assert difference[background > 0.99].mean() > 0.1
    assert difference[background < 0.01].max() < 0.02


def test_a_parser_learns_the_parts_of_heads_it_has_not_seen() -> None:
    recipe = build_recipe(randomisation={**STILL, "noise": 0.02})
    parser = recipe.networks["parser"]
    # At twice this rate the share goes up and down by 0.2 from step to step.
    optimizer = torch.optim.AdamW(parser.parameters(), lr=5e-3)
    batches = [recipe.prepare(draw_heads(16, seed)) for seed in range(6)]
    for step in range(48):
        losses = recipe.parse(PhaseInput(recipe.networks, recipe.frozen, batches[step % len(batches)]))
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()
    found = recipe.summarise(recipe.measure({"parser": parser.eval()}, draw_heads(32, seed=1000)))
    assert found["validation_iou_skin"] > 0.5
    assert found["validation_iou_background"] > 0.5
    assert recipe.preview({"parser": parser}, draw_heads(4)).shape == (4, 4, 3, SIZE, SIZE)


def test_intersection_over_union_is_of_all_pixels_and_one_where_a_part_is_nowhere() -> None:
    recipe = build_recipe()
    names = (*synthetic.PARTS, "skin")
    columns = {f"{name}_{count}": torch.zeros(2) for name in names for count in ("both", "either")}
    columns["face_both"], columns["face_either"] = torch.tensor([10.0, 0.0]), torch.tensor([10.0, 30.0])
    found = recipe.summarise(columns)
    assert found["validation_iou_face"] == pytest.approx(0.25)
    assert found["validation_iou_glasses"] == 1.0


def test_shares_of_parts_sum_to_one_at_the_size_of_the_picture() -> None:
    shares = PartShares(FaceParser(FaceParserConfig(channels=(8, 16, 24)), 5)).eval()(torch.rand(2, 3, 64, 32))
    assert shares.shape == (2, 5, 64, 32)
    assert torch.allclose(shares.sum(1), torch.ones(2, 64, 32), atol=1e-5)
