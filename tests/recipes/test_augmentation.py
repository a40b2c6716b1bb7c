from __future__ import annotations

import torch

from fusionray.recipes.augmentation import Augmentation, AugmentationConfig, degrade_resolution
from tests.support.tiny_fusion import STILL

ROTATED = AugmentationConfig(rotation_degrees=15)


def draw(count: int = 4, size: int = 24) -> torch.Tensor:
    return torch.rand(count, 3, size, size) * 2 - 1


def test_references_and_masks_move_with_the_picture() -> None:
    torch.manual_seed(0)
    image = draw()
    moved, follower, red = Augmentation(ROTATED).eval()(image, [image], [image[:, :1]])
    assert (moved - image).abs().mean() > 0.1
    assert torch.equal(moved, follower)
    # A mask takes the geometry without the colours: a mask of one picture's red follows its shapes.
    still = AugmentationConfig(rotation_degrees=15, brightness=0, contrast=0, saturation=0, hue=0)
    moved, red = Augmentation(still)(image, (), [image[:, :1]])
    torch.testing.assert_close(moved[:, :1], red, rtol=0, atol=1e-4)


def test_a_mask_keeps_its_range_and_shape() -> None:
    torch.manual_seed(0)
    _, mask = Augmentation(ROTATED)(draw(), (), [torch.ones(4, 1, 24, 24)])
    # A border that is repeated leaves no corner uncovered.
    torch.testing.assert_close(mask, torch.ones(4, 1, 24, 24))


def test_each_row_gets_a_draw_of_its_own() -> None:
    torch.manual_seed(0)
    (moved,) = Augmentation(ROTATED)(draw(1).expand(4, 3, 24, 24))
    for i in range(1, 4):
        assert (moved[0] - moved[i]).abs().mean() > 0.01


def test_values_stay_in_range() -> None:
    torch.manual_seed(0)
    (moved,) = Augmentation(AugmentationConfig(brightness=0.9, contrast=0.9))(draw())
    assert moved.abs().max() <= 1


def test_with_everything_turned_off_the_picture_is_unchanged() -> None:
    image = draw()
    torch.testing.assert_close(Augmentation(STILL)(image)[0], image, rtol=0, atol=1e-5)


def test_a_certain_flip_mirrors_every_row() -> None:
    image = draw()
    (moved,) = Augmentation(STILL.model_copy(update={"flip": 1.0}))(image)
    torch.testing.assert_close(moved, image.flip(-1), rtol=0, atol=1e-5)


def test_equal_generator_states_give_equal_augmentations() -> None:
    augmentation, image = Augmentation(ROTATED), draw()
    torch.manual_seed(7)
    (first,) = augmentation(image)
    torch.manual_seed(7)
    (second,) = augmentation(image)
    assert torch.equal(first, second)


def test_degrading_keeps_the_mean_and_loses_detail() -> None:
    torch.manual_seed(0)
    image = draw(8, 64)
    degraded = degrade_resolution(image, 0.25)
    assert degraded.shape == image.shape
    torch.testing.assert_close(degraded.mean(), image.mean(), rtol=0, atol=0.01)
    assert degraded.std() < 0.9 * image.std()
    torch.testing.assert_close(degrade_resolution(image, 1.0), image, rtol=0, atol=1e-5)
