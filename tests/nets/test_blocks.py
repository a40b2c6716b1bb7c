from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fusionray.nets.blocks import EncoderBlock, FusionBlock, ModulatedConv, count_groups, count_parameters, upsample


def modulated_conv_as_published(layer: ModulatedConv, x: Tensor, style: Tensor) -> Tensor:
    """StyleGAN2, equations 1 and 3, row by row: w' = s_i w_ijk, w'' = w' / sqrt(sum w'^2 + eps)."""
    rows = []
    for image, code in zip(x, style, strict=True):
        scale = layer.to_scale(code)
        weight = torch.empty_like(layer.weight)
        for j in range(len(weight)):
            modulated = torch.stack([scale[i] * layer.weight[j, i] for i in range(len(scale))])
            weight[j] = modulated / torch.sqrt(modulated.square().sum() + 1e-6)
        rows.append(F.conv2d(image[None], weight, layer.to_bias(code), padding=1)[0])
    return torch.stack(rows)


def test_modulated_convolution_equals_the_published_formula() -> None:
    torch.manual_seed(0)
    layer = ModulatedConv(5, 7, style_length=11)
    torch.nn.init.normal_(layer.to_bias.bias)
    x, style = torch.randn(3, 5, 6, 8), torch.randn(3, 11)
    with torch.no_grad():
        torch.testing.assert_close(layer(x, style), modulated_conv_as_published(layer, x, style), rtol=1e-4, atol=1e-5)


def test_demodulation_keeps_the_variance_whatever_the_style() -> None:
    torch.manual_seed(0)
    layer = ModulatedConv(32, 64, style_length=16)
    # The bias is the style's too: it moves a whole map and has no part in the spread within one.
    x, style = torch.randn(4, 32, 32, 32), torch.randn(4, 16) * torch.tensor([0.1, 1, 10, 100])[:, None]
    with torch.no_grad():
        spread = layer(x, style)[:, :, 1:-1, 1:-1].var(dim=(2, 3)).mean(dim=1).sqrt()
    torch.testing.assert_close(spread, torch.ones(4), rtol=0.1, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 300, 3000])
def test_a_large_style_silences_no_channel_in_half_precision(dtype: torch.dtype, size: float) -> None:
    # 300 squared is more than float16 holds.
    torch.manual_seed(0)
    layer = ModulatedConv(32, 16, style_length=8)
    x, style = torch.randn(2, 32, 8, 8) * 10, torch.randn(2, 8) * size
    with torch.no_grad():
        torch.nn.init.zeros_(layer.to_bias.weight)
        exact = layer(x, style)
        with torch.autocast("cpu", dtype=dtype):
            reduced = layer(x, style)
    assert reduced.dtype == dtype
    error = (reduced.float() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert error < (0.01 if dtype is torch.bfloat16 else 0.001)


def test_demodulation_is_float32_under_autocast() -> None:
    torch.manual_seed(0)
    layer = ModulatedConv(32, 16, style_length=8)
    style = torch.randn(2, 8)
    exact_scale, exact_norm = layer.modulation(style)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scale, norm = layer.modulation(style)
    # The products are what counts: a large style is divided, and its demodulation multiplied.
    products = scale[:, None] * norm[:, :, None]
    torch.testing.assert_close(products, exact_scale[:, None] * exact_norm[:, :, None], rtol=1e-5, atol=1e-6)


def test_an_encoder_block_halves_the_sides() -> None:
    assert EncoderBlock(8, 12)(torch.randn(2, 8, 16, 10)).shape == (2, 12, 8, 5)


def test_a_closed_gate_passes_the_target_s_feature_whatever_the_identity() -> None:
    torch.manual_seed(0)
    block = FusionBlock(4, 6, 8, style_length=5)
    x, skip = torch.randn(2, 4, 8, 8), torch.randn(2, 6, 8, 8)
    with torch.no_grad():
        block.gate.bias.fill_(-100)
        torch.testing.assert_close(block(x, skip, torch.randn(2, 5)), block.attribute(skip))
        block.gate.bias.fill_(0)
        assert (block(x, skip, torch.randn(2, 5)) - block(x, skip, torch.randn(2, 5))).abs().max() > 0.01


def test_upsampling_keeps_a_constant_and_doubles_the_sides() -> None:
    torch.testing.assert_close(upsample(torch.full((1, 2, 3, 4), 0.7)), torch.full((1, 2, 6, 8), 0.7))


@pytest.mark.parametrize("channels", [1, 3, 16, 24, 32, 40, 48, 96, 192, 320, 768])
def test_groups_always_divide_the_channels(channels: int) -> None:
    assert channels % count_groups(channels) == 0


def test_only_trained_parameters_are_counted() -> None:
    layer = torch.nn.Linear(3, 4)
    assert count_parameters(layer) == 16
    layer.bias.requires_grad_(False)
    assert count_parameters(layer) == 12
