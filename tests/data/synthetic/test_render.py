from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from fusionray.data.synthetic import (
    ATTRIBUTE_NAMES,
    PARTS,
    neutral_attributes,
    project_landmarks,
    render,
    render_parts,
    render_with_region,
    renderer,
    sample_attributes,
    sample_identities,
)
from fusionray.data.synthetic.graphics import device, pixel_window
from fusionray.data.synthetic.layers import background


def similarity_view(angle: float, zoom: float, centre: tuple[float, float]) -> torch.Tensor:
    """Map the output square to a turned square of side `zoom` of the picture, round `centre`."""
    cosine, sine = zoom * math.cos(angle), zoom * math.sin(angle)
    linear = torch.tensor([[cosine, -sine], [sine, cosine]])
    shift = torch.tensor(centre) - linear @ torch.tensor([0.5, 0.5])
    return torch.cat((linear, shift[:, None]), dim=1)[None]


@pytest.mark.parametrize("size", [24, 64, 129, 256])
def test_pictures_are_rgb_of_the_asked_size_between_0_and_1(size):
    identity, attributes = sample_identities(5, 0), sample_attributes(5, 0)
    image, region = render_with_region(identity, attributes, size)
    assert image.shape == (5, 3, size, size)
    assert region.shape == (5, 1, size, size)
    assert image.dtype == region.dtype == torch.float32
    for values in (image, region):
        assert torch.isfinite(values).all()
        assert values.min() >= 0.0
        assert values.max() <= 1.0
    assert image.std(dim=(1, 2, 3)).min() > 0.02


def test_the_same_input_gives_the_same_bytes():
    identity, attributes = sample_identities(20, 4), sample_attributes(20, 5)
    assert torch.equal(render(identity, attributes, 64), render(identity, attributes, 64))


def test_a_picture_does_not_depend_on_its_batch():
    identity, attributes = sample_identities(40, 4), sample_attributes(40, 5)
    together, regions = render_with_region(identity, attributes, 64)
    for row in (0, 17, 39):
        alone, region = render_with_region(identity[row : row + 1], attributes[row : row + 1], 64)
        torch.testing.assert_close(alone[0], together[row], atol=2e-4, rtol=0.0)
        torch.testing.assert_close(region[0], regions[row], atol=2e-4, rtol=0.0)
    reverse = render(identity.flip(0), attributes.flip(0), 64).flip(0)
    torch.testing.assert_close(reverse, together, atol=2e-4, rtol=0.0)


def test_an_empty_batch_gives_no_pictures():
    assert render(sample_identities(0, 0), sample_attributes(0, 0), 32).shape == (0, 3, 32, 32)


def test_the_identity_view_is_the_whole_picture():
    identity, attributes = sample_identities(6, 1), sample_attributes(6, 2)
    whole = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]).expand(6, 2, 3)
    assert torch.equal(render(identity, attributes, 64, whole), render(identity, attributes, 64))


def test_a_smaller_picture_is_the_larger_one_averaged():
    identity, attributes = sample_identities(6, 1), sample_attributes(6, 2)
    small, small_region = render_with_region(identity, attributes, 96)
    large, large_region = render_with_region(identity, attributes, 384)
    assert (functional.avg_pool2d(large, 4) - small).abs().mean() < 0.012
    assert (functional.avg_pool2d(large_region, 4) - small_region).abs().mean() < 0.008


@pytest.mark.parametrize(("angle", "zoom"), [(0.0, 0.5), (0.4, 0.6), (-2.5, 0.7), (0.2, 1.4)])
def test_a_view_equals_rendering_large_and_warping(angle, zoom):
    count, size = 4, 64
    identity, attributes = sample_identities(count, 7), sample_attributes(count, 8)
    view = similarity_view(angle, zoom, (0.52, 0.5)).expand(count, 2, 3)
    direct, direct_region = render_with_region(identity, attributes, size, view)
    large, large_region = render_with_region(identity, attributes, 448)
    # grid_sample speaks of [-1, 1]: p = 2 q - 1 on both sides of the view q' = A q + b.
    linear, shift = view[:, :, :2], view[:, :, 2]
    theta = torch.cat((linear, (linear.sum(dim=2) + 2.0 * shift - 1.0)[:, :, None]), dim=2)
    fine = 4 * size
    grid = functional.affine_grid(theta, [count, 3, fine, fine], align_corners=False)
    inside = functional.avg_pool2d((grid.abs().amax(dim=3) < 0.99).float()[:, None], 4) == 1.0
    for drawn, reference in ((direct, large), (direct_region, large_region)):
        warped = functional.avg_pool2d(functional.grid_sample(reference, grid, align_corners=False), 4)
        error = ((warped - drawn).abs() * inside).sum() / (inside.sum() * drawn.shape[1])
        assert error < 0.015


def test_a_view_shows_the_landmarks_where_it_maps_them():
    """A crop round the left eye centres that eye: closing it changes the middle of the crop most."""
    identity, attributes = sample_identities(4, 2), neutral_attributes(4)
    eye = project_landmarks(identity, attributes)[:, 0]
    view = torch.cat([similarity_view(0.0, 0.3, (float(x), float(y))) for x, y in eye])
    closed = attributes.clone()
    closed[:, _column("eye_closure")] = 1.0
    change = (render(identity, closed, 48, view) - render(identity, attributes, 48, view)).abs().sum(dim=1)
    assert (change[:, 12:36, 12:36].sum(dim=(1, 2)) > 0.7 * change.sum(dim=(1, 2))).all()


def test_wrong_shapes_are_refused_by_name():
    identity, attributes = sample_identities(2, 0), sample_attributes(2, 0)
    with pytest.raises(ValueError, match="attributes: 1 rows for 2"):
        render(identity, attributes[:1], 64)
    with pytest.raises(ValueError, match="attributes: 1 rows for 2"):
        project_landmarks(identity, attributes[:1])
    with pytest.raises(ValueError, match="parameters: expected shape"):
        render(identity[:, :-1], attributes, 64)
    with pytest.raises(ValueError, match="view: expected shape"):
        render(identity, attributes, 64, torch.eye(3)[None])
    with pytest.raises(ValueError, match="size: 4"):
        render(identity, attributes, 4)


def _column(name: str) -> int:
    from fusionray.data.synthetic import ATTRIBUTE_NAMES

    return ATTRIBUTE_NAMES.index(name)


def test_layers_drawn_whole_as_on_a_gpu_give_the_same_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    people, attributes = sample_identities(48, seed=3), sample_attributes(48, seed=4)
    pictures, regions = render_with_region(people, attributes, 128)
    for module in (device, renderer, background, pixel_window):
        monkeypatch.setattr(module, "host_decides", lambda _: False)
    whole, whole_regions = render_with_region(people, attributes, 128)
    # Positions are sums in another order: a tenth of a grey level at the most.
    torch.testing.assert_close(whole, pictures, rtol=0, atol=4e-4)
    torch.testing.assert_close(whole_regions, regions, rtol=0, atol=4e-4)


def test_parts_of_each_pixel_sum_to_one_and_agree_with_the_region_of_the_face():
    identity, attributes = sample_identities(24, 5), sample_attributes(24, 5)
    size = 96
    parts, (_, region) = render_parts(identity, attributes, size), render_with_region(identity, attributes, size)
    assert parts.shape == (24, len(PARTS), size, size)
    assert parts.min() >= 0
    torch.testing.assert_close(parts.sum(1), torch.ones(24, size, size), atol=1e-5, rtol=0)
    shown = parts[:, [PARTS.index("face"), PARTS.index("ears")]].sum(1)
    # Edges of an ear on a face are blended in another order.
    assert (shown - region[:, 0]).abs().mean() < 1e-3
    assert all(parts[:, number].amax() > 0.9 for number in range(len(PARTS)))


@pytest.mark.parametrize(
    ("parameter", "change", "part"), [("clothes_value", 0.5, "clothes"), ("hair_tone", 0.6, "hair")]
)
def test_a_part_is_where_its_colour_changes(parameter, change, part):
    identity, attributes = sample_identities(12, 6), sample_attributes(12, 6)
    # Grain and glare hide nothing.
    attributes[:, ATTRIBUTE_NAMES.index("noise")] = 0
    attributes[:, ATTRIBUTE_NAMES.index(parameter)] = 0.1
    other = attributes.clone()
    other[:, ATTRIBUTE_NAMES.index(parameter)] += change
    changed = (render(identity, attributes, 96) - render(identity, other, 96)).abs().amax(1)
    share = render_parts(identity, attributes, 96)[:, PARTS.index(part)]
    assert changed[share < 1e-3].max() < 0.01
    assert (changed[share > 0.99] > 0.01).float().mean() > 0.95
