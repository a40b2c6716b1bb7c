"""The losses of style transfer: what each of them sees, and what it does not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fusionray.metrics.similarity import region_ssim
from fusionray.recipes.style_transfer.losses import content_loss, contrast_loss, luminance, structure_loss, style_loss
from fusionray.recipes.style_transfer.scoring import ssim


def draw(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def shuffle_places(maps: Tensor) -> Tensor:
    """Move the pixels of maps [N,C,H,W] to other places, all channels alike."""
    order = torch.randperm(maps[0, 0].numel(), generator=torch.Generator().manual_seed(0))
    return maps.flatten(2)[:, :, order].view_as(maps)


def test_style_is_what_remains_when_pixels_change_places() -> None:
    maps = [draw(1, 3, 6, 16, 16), draw(2, 3, 8, 8, 8)]
    moved = [shuffle_places(each) for each in maps]
    torch.testing.assert_close(style_loss(moved, maps), torch.zeros(3), atol=1e-6, rtol=0)
    assert content_loss(moved, maps).min() > 0.5


def test_content_is_what_remains_when_channels_change_their_strength() -> None:
    maps = [draw(1, 3, 6, 16, 16)]
    stronger = [each * torch.linspace(0.5, 3, 6).view(1, 6, 1, 1) + 0.3 for each in maps]
    assert content_loss(stronger, maps).max() < 1e-3
    assert style_loss(stronger, maps).min() > 0.1


@pytest.mark.parametrize("factor", [0.3, 1.0, 100.0])
def test_losses_do_not_depend_on_the_scale_of_the_perceptual_network(factor: float) -> None:
    first, second = [draw(1, 2, 4, 12, 12)], [draw(2, 2, 4, 12, 12) ** 2]
    for loss in (content_loss, style_loss):
        scaled = loss([each * factor for each in first], [each * factor for each in second])
        torch.testing.assert_close(scaled, loss(first, second), rtol=2e-2, atol=1e-3)


def test_a_dark_style_counts_as_much_as_a_bright_one() -> None:
    bright, dark = [draw(1, 1, 4, 12, 12)], [draw(2, 1, 4, 12, 12) * 0.1]
    torch.testing.assert_close(style_loss(bright, dark), style_loss(dark, bright), rtol=1e-3, atol=0)
    assert 0.5 < style_loss(bright, dark).item() < 1.5


def test_contrast_asks_for_the_own_style_not_for_any() -> None:
    styles = draw(1, 4, 10)
    assert contrast_loss(styles, styles) < 1e-6
    others = contrast_loss(styles.roll(1, 0), styles)
    average = contrast_loss(styles.mean(dim=0, keepdim=True).expand(4, 10), styles)
    assert others > average > 0.5
    alone = styles[:1].clone().requires_grad_(True)
    contrast_loss(alone, styles[:1]).backward()
    assert alone.grad is not None


def test_structure_ignores_brightness_and_sees_edges() -> None:
    content = draw(1, 2, 3, 32, 32) * 0.5 - 0.25
    assert structure_loss(content, content).max() < 1e-5
    assert structure_loss(content + 0.5, content).max() < 1e-3
    assert structure_loss(draw(2, 2, 3, 32, 32), content).min() > 0.5
    assert ssim(content + 0.5, content).max() < 0.95


def test_the_measured_ssim_is_that_of_grey_pictures() -> None:
    first, second = draw(1, 2, 3, 32, 32) * 2 - 1, draw(2, 2, 3, 32, 32) * 2 - 1
    grey = [luminance(picture).expand(2, 3, 32, 32) * 2 - 1 for picture in (first, second)]
    torch.testing.assert_close(ssim(first, second), region_ssim(*grey, torch.ones(2, 1, 32, 32)))
