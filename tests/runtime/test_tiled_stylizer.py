"""A picture that is painted in tiles is the picture that is painted as a whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fusionray.bands.array import ArrayBands
from fusionray.bundle.bundle import Bundle, read_bundle
from fusionray.bundle.description import TILE_CONTENT_NAME, TILE_FULL_NAME, TensorDescription
from fusionray.errors import BundleInvalid
from fusionray.faces.face import Image
from fusionray.nets import style_transfer
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.providers import CPU
from fusionray.runtime.pixels import denormalize_crops
from fusionray.runtime.style_transfer import stylizer, tiled_stylizer, tiles
from fusionray.runtime.style_transfer.stylizer import Stylizer
from fusionray.runtime.style_transfer.tiled_stylizer import TiledStylizer, report_nothing
from fusionray.runtime.style_transfer.tiles import Moments, choose_band_height, cut_tiles
from tests.support.blend_bundle import write_blend_bundle

ON_CPU = RuntimeConfig(providers=(CPU,), threads=1)


@pytest.fixture(scope="module")
def bundle(style_folder: Path) -> Bundle:
    return read_bundle(str(style_folder / "bundle"))


@pytest.fixture(scope="module")
def whole(bundle: Bundle) -> Stylizer:
    return Stylizer(bundle, ON_CPU)


@pytest.fixture(scope="module")
def tiled(bundle: Bundle) -> TiledStylizer:
    return TiledStylizer(bundle, ON_CPU)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bands of 16 rows, tiles of about 16 x 24 pixels."""
    monkeypatch.setattr(tiles, "SMALLEST_BAND", 16)
    monkeypatch.setattr(tiles, "LARGEST_BAND", 16)
    monkeypatch.setattr(tiles, "TILE_PIXELS", 8500)


def draw(height: int, width: int) -> Image:
    """Draw a picture whose parts differ, so that the statistics of a part are not those of the whole."""
    noise = np.random.default_rng(5).integers(0, 90, (height, width, 3))
    slope = np.linspace(0, 160, width).astype(int)[None, :, None]
    return (noise + slope).astype(np.uint8)


SIZES = [(53, 67), (64, 48), (16, 16), (17, 130), (130, 17), (4, 90), (1, 50), (50, 1), (1, 1)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("strength", [1.0, 0.4])
def test_tiles_make_the_same_picture(
    whole: Stylizer, tiled: TiledStylizer, size: tuple[int, int], strength: float
) -> None:
    content, style = draw(*size), whole.encode_style(draw(40, 40)[:, ::-1])
    expected = whole.paint(content, style, strength)
    painted = np.concatenate(list(tiled.paint(ArrayBands(content), style, strength)))
    # A rounding of 255 steps may fall the other way; the values themselves differ by less than 1e-3 of the range.
    assert painted.shape == expected.shape
    assert np.abs(painted.astype(int) - expected).max() <= 1


def test_values_differ_by_rounding_alone(
    whole: Stylizer, tiled: TiledStylizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, style = draw(61, 90), whole.encode_style(draw(40, 40))
    made: list[NDArray[np.float32]] = []

    def keep(batch: NDArray[np.float32], described: TensorDescription) -> Image:
        made.append(batch[0])
        return denormalize_crops(batch, described)

    for module in (stylizer, tiled_stylizer):
        monkeypatch.setattr(module, "denormalize_crops", keep)
    whole.paint(content, style)
    list(tiled.paint(ArrayBands(content), style))
    sheet, *parts = made
    places = [tile for row in cut_tiles(ArrayBands(content), tiled.halos[TILE_FULL_NAME], 4) for tile in row]
    assert len(places) == len(parts) > 10
    for tile, part in zip(places, parts, strict=True):
        area = sheet[:, tile.rows.start :, tile.columns.start :][:, : part.shape[1], : part.shape[2]]
        assert np.abs(part - area).max() < 1e-4


def test_a_smaller_halo_makes_seams(whole: Stylizer, tiled: TiledStylizer, monkeypatch: pytest.MonkeyPatch) -> None:
    content, style = draw(61, 90), whole.encode_style(draw(40, 40))
    expected = whole.paint(content, style).astype(int)
    monkeypatch.setitem(tiled.halos, TILE_FULL_NAME, 0)
    painted = np.concatenate(list(tiled.paint(ArrayBands(content), style)))
    assert np.abs(painted - expected).max() > 1


def test_statistics_need_their_halo_too(tiled: TiledStylizer, monkeypatch: pytest.MonkeyPatch) -> None:
    content = ArrayBands(draw(61, 90))
    # Of 20 columns, and of all.
    monkeypatch.setattr(tiles, "TILE_PIXELS", 1800)
    assert len(next(cut_tiles(content, tiled.halos[TILE_CONTENT_NAME], 4))) == 5
    exact = tiled.measure_features(TILE_CONTENT_NAME, content, {}, 4, report_nothing)
    monkeypatch.setattr(tiles, "TILE_PIXELS", 20_000)
    np.testing.assert_allclose(
        tiled.measure_features(TILE_CONTENT_NAME, content, {}, 4, report_nothing), exact, rtol=1e-5, atol=1e-6
    )
    monkeypatch.setitem(tiled.halos, TILE_CONTENT_NAME, 0)
    assert np.abs(tiled.measure_features(TILE_CONTENT_NAME, content, {}, 4, report_nothing) / exact - 1).max() > 1e-4


def test_the_halos_hold_all_on_which_a_tile_depends() -> None:
    torch.manual_seed(0)
    network = style_transfer.StyleTransferNetwork(style_transfer.StyleNetworkConfig()).double()
    picture = torch.zeros(1, 3, 160, 160, dtype=torch.float64, requires_grad=True)
    style = network.encode_style(torch.rand(1, 3, 32, 32, dtype=torch.float64) * 2 - 1).detach().double()
    quarter = network.encode_content(picture)
    fixed = style_transfer.measure_statistics(quarter.detach())
    half = network.painter.paint_half(quarter, style_transfer.Statistics(*(v.double() for v in fixed)), style)
    for features, stride, halo in (
        (quarter, 4, style_transfer.CONTENT_PIXELS),
        (half, 2, style_transfer.HALF_PIXELS),
    ):
        # A tile of 80 pixels from pixel 40 on.
        tile = features[..., 40 // stride : 120 // stride, 40 // stride : 120 // stride]
        (reached,) = torch.autograd.grad(tile.abs().sum(), picture, retain_graph=True)
        rows = reached.abs().sum(dim=(0, 1, 3)).nonzero().flatten()
        assert rows.min() >= 40 - halo
        assert rows.max() < 120 + halo
        assert 40 - rows.min() > halo - 4


def test_passes_are_counted(whole: Stylizer, tiled: TiledStylizer) -> None:
    content, style = draw(61, 40), whole.encode_style(draw(40, 40))
    for strength in (1.0, 0.5):
        done: list[int] = []
        list(tiled.paint(ArrayBands(content), style, strength, done.append))
        assert sum(done) == 61 * tiled.count_passes(strength)


def test_a_strength_outside_is_an_error(tiled: TiledStylizer) -> None:
    with pytest.raises(ValueError, match="strength 2"):
        next(tiled.paint(ArrayBands(draw(20, 20)), np.zeros(10, np.float32), 2.0))


def test_a_bundle_without_tiles_says_so(tmp_path: Path) -> None:
    with pytest.raises(BundleInvalid, match="paints in tiles; export the model again"):
        TiledStylizer(write_blend_bundle(tmp_path / "bundle"), ON_CPU)


def test_moments_of_parts_are_those_of_the_whole() -> None:
    values = np.random.default_rng(1).normal([[3.0], [-200.0]], [[0.1], [5.0]], (2, 1000)).astype(np.float32)
    moments = Moments()
    for start, stop in ((0, 1), (1, 300), (300, 1000)):
        moments.add(values[:, start:stop])
    np.testing.assert_allclose(moments.mean, values.mean(axis=1, dtype=np.float64), rtol=1e-7)
    np.testing.assert_allclose(moments.variance, values.var(axis=1, dtype=np.float64), rtol=1e-5)


def test_wide_pictures_have_low_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert choose_band_height(500, 36, 4) == 256
    height = choose_band_height(30_000, 36, 4)
    assert height % 4 == 0
    assert (2 * height + 72) * 3 * 30_000 <= tiles.BAND_BYTES
    assert choose_band_height(10**6, 36, 4) == 64
