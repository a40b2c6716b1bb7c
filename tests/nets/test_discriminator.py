from __future__ import annotations

import torch
import torch.nn.functional as F

from fusionray.nets.discriminator import Discriminator, DiscriminatorConfig


def test_each_scale_sees_the_picture_at_half_the_size_of_the_former() -> None:
    output = Discriminator(DiscriminatorConfig(channels=(4, 8, 12), scales=3))(torch.randn(2, 3, 64, 64))
    assert [logits.shape for logits in output.logits] == [(2, 1, 8, 8), (2, 1, 4, 4), (2, 1, 2, 2)]
    assert [feature.shape for feature in output.features[1]] == [(2, 4, 16, 16), (2, 8, 8, 8), (2, 12, 4, 4)]


def test_a_scale_sees_the_averaged_picture_alone() -> None:
    torch.manual_seed(0)
    discriminator = Discriminator(DiscriminatorConfig(channels=(4, 8), scales=2))
    image = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        output = discriminator(image)
        again = discriminator(F.interpolate(F.avg_pool2d(image, 2), scale_factor=2.0, mode="nearest"))
    # Detail below two pixels reaches the first scale only.
    torch.testing.assert_close(output.logits[1], again.logits[1])
    assert (output.logits[0] - again.logits[0]).abs().max() > 1e-3


def test_rows_do_not_see_each_other() -> None:
    torch.manual_seed(0)
    discriminator = Discriminator(DiscriminatorConfig(channels=(4, 8), scales=2))
    image = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(discriminator(image).logits[0][1:2], discriminator(image[1:2]).logits[0])
