"""The style-transfer network: what is local in it, what is global, and that tiles make the whole picture."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fusionray.nets.blocks import count_parameters
from fusionray.nets.style_transfer import (
    RECEPTIVE_PIXELS,
    STRIDE,
    Statistics,
    StyleNetworkConfig,
    StyleTransferNetwork,
    measure_statistics,
    mix_styles,
    replace_statistics,
)

TINY = StyleNetworkConfig(full_channels=4, half_channels=8, quarter_channels=8, code_length=8)


@pytest.fixture(scope="module")
def network() -> StyleTransferNetwork:
    torch.manual_seed(0)
    return StyleTransferNetwork(TINY).eval().requires_grad_(False)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def paint_with(network: StyleTransferNetwork, content: Tensor, style: Tensor, known: list[Statistics]) -> Tensor:
    """Paint with statistics from outside."""
    painter = network.painter
    half = painter.paint_half(network.encode_content(content), known[0], style)
    return painter.paint_full(half, known[1], style)


def know(network: StyleTransferNetwork, content: Tensor, style: Tensor) -> list[Statistics]:
    """Measure the statistics of a whole content in both places."""
    features = network.encode_content(content)
    first = measure_statistics(features)
    return [first, measure_statistics(network.painter.paint_half(features, first, style))]


def test_tiles_with_the_statistics_of_the_whole_make_the_whole(network: StyleTransferNetwork) -> None:
    content, style = draw(1, 1, 3, 96, 128), network.encode_style(draw(2, 1, 3, 32, 32))
    known, whole, side = know(network, content, style), network.paint(content, style), 32
    made = torch.zeros_like(whole)
    for top in range(0, 96, side):
        for left in range(0, 128, side):
            above, before = max(0, top - RECEPTIVE_PIXELS), max(0, left - RECEPTIVE_PIXELS)
            tile = content[..., above : top + side + RECEPTIVE_PIXELS, before : left + side + RECEPTIVE_PIXELS]
            painted = paint_with(network, tile, style, known)
            made[..., top : top + side, left : left + side] = painted[
                ..., top - above : top - above + side, left - before : left - before + side
            ]
    torch.testing.assert_close(made, whole, atol=1e-5, rtol=0)


def test_tiles_with_their_own_statistics_do_not(network: StyleTransferNetwork) -> None:
    content, style = draw(1, 1, 3, 96, 128), network.encode_style(draw(2, 1, 3, 32, 32))
    content[..., 64:] *= 0.2
    assert (network.paint(content[..., :64], style) - network.paint(content, style)[..., :64]).abs().max() > 1e-3


@pytest.mark.parametrize("place", [(64, 64), (65, 66), (67, 63)])
def test_a_pixel_changes_nothing_beyond_the_receptive_field(
    network: StyleTransferNetwork, place: tuple[int, int]
) -> None:
    content, style = draw(3, 1, 3, 128, 128), network.encode_style(draw(2, 1, 3, 32, 32))
    known, changed = know(network, content, style), content.clone()
    changed[..., place[0], place[1]] += 1.0
    before, after = (paint_with(network, picture, style, known) for picture in (content, changed))
    rows, columns = (before != after).any(dim=1)[0].nonzero().unbind(1)
    far = max((rows - place[0]).abs().max().item(), (columns - place[1]).abs().max().item())
    # The bound is not much larger than needed: a halo costs time in every tile.
    assert far >= RECEPTIVE_PIXELS - 3 * STRIDE
    assert far <= RECEPTIVE_PIXELS
    # With its own statistics the change reaches everywhere.
    assert (network.paint(changed, style) != network.paint(content, style)).any(dim=1).float().mean() > 0.9


def test_features_get_the_wanted_statistics() -> None:
    features, wanted = draw(4, 2, 5, 12, 8) * 3 + 1, measure_statistics(draw(5, 2, 5, 9, 9))
    found = measure_statistics(replace_statistics(features, measure_statistics(features), wanted))
    torch.testing.assert_close(found.mean, wanted.mean, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.deviation, wanted.deviation, atol=1e-4, rtol=0)


def test_mixed_styles_lie_between_theirs(network: StyleTransferNetwork) -> None:
    content = draw(6, 1, 3, 32, 32)
    first, second = (network.encode_style(draw(seed, 1, 3, 40, 24)) for seed in (7, 8))
    torch.testing.assert_close(mix_styles([first, second], [3.0, 1.0]), 0.75 * first + 0.25 * second)
    assert torch.equal(mix_styles([first, second], [2.0, 0.0]), first)
    ends = [network.paint(content, style) for style in (first, second)]
    apart = (ends[0] - ends[1]).abs().mean()
    middle = network.paint(content, mix_styles([first, second], [1.0, 1.0]))
    assert apart > 1e-3
    assert all((middle - end).abs().mean() < apart for end in ends)


def test_rows_of_a_batch_do_not_mix(network: StyleTransferNetwork) -> None:
    contents, styles = draw(9, 3, 3, 24, 32), draw(10, 3, 3, 16, 20)
    together = network(styles, contents)
    for row in range(3):
        alone = network(styles[row : row + 1], contents[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-5, rtol=0)


def test_the_default_network_is_small_and_paints_under_autocast() -> None:
    network = StyleTransferNetwork(StyleNetworkConfig())
    assert count_parameters(network) < 500_000
    with torch.autocast("cpu", dtype=torch.bfloat16):
        painted = network(draw(1, 1, 3, 32, 32), draw(2, 1, 3, 32, 48))
    assert painted.shape == (1, 3, 32, 48)
    assert painted.isfinite().all()
