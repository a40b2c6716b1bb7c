"""Stylize a picture of any size in tiles, with the result of the whole picture.

The network looks at the whole picture in two places, by the mean and deviation of features. So the picture is read
three times: for the statistics of the first place, for those of the second, and to paint it; a tile is always read with
the pixels around it on which it depends. Shape suffixes: C channels, L length of an encoded style.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import cv2
import numpy as np

from fusionray.bands.array import ArrayBands, BandSource
from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import TILE_CONTENT_NAME, TILE_FULL_NAME, TILE_HALF_NAME, TILE_STYLE_NAME
from fusionray.errors import BundleInvalid
from fusionray.faces.face import Image
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.engine import InferenceEngine
from fusionray.runtime.engines.factory import open_engine
from fusionray.runtime.pixels import FloatArray, denormalize_crops, normalize_crops
from fusionray.runtime.style_transfer.styles import STRIDE, check_strength, mix_styles
from fusionray.runtime.style_transfer.tiles import Moments, Tile, choose_band_height, cut_tiles

# As in the network (nets/style_transfer.py): a channel without any variation has a deviation all the same.
FLOOR_VARIANCE = 1e-5
HALF, QUARTER = 2, 4
TILE_NAMES = (TILE_STYLE_NAME, TILE_CONTENT_NAME, TILE_HALF_NAME, TILE_FULL_NAME)
# A picture of so many pixels has nearly the statistics of a larger one.
REDUCED_PIXELS = 2**20
# Called with the number of rows that are done, in all passes.
Report = Callable[[int], object]


def report_nothing(rows: int) -> None:
    """Take a report of progress and do nothing."""


class TiledStylizer:
    """The models of a style-transfer bundle that take tiles. Thread-safe.

    Raises: BundleInvalid if the bundle has none; ProviderUnavailable.
    """

    def __init__(self, bundle: Bundle, settings: RuntimeConfig | None = None) -> None:
        description = bundle.description
        self.halos = description.halos
        missing = [name for name in TILE_NAMES if name not in self.halos]
        if missing:
            raise BundleInvalid(f"{bundle.folder}: has no {missing[0]}, which paints in tiles; export the model again")
        wrong = [name for name, halo in self.halos.items() if halo % STRIDE or halo < 0]
        if wrong:
            raise BundleInvalid(f"{bundle.folder}: the halo of {wrong[0]} is no multiple of {STRIDE}")
        self.picture = bundle.tensor(TILE_FULL_NAME, "content")
        self.style = bundle.tensor(TILE_FULL_NAME, "style")
        described = {name: bundle.tensor(TILE_FULL_NAME, name) for name in ("style", "quarter")}
        self.lengths = {name: int(tensor.shape[-1]) for name, tensor in described.items()}

        unplanned = (settings or RuntimeConfig()).model_copy(update={"memory_plans": False})

        def open_model(name: str) -> InferenceEngine:
            return open_engine(bundle.folder / name, unplanned, digest=description.files[name])

        self.engines = {name: open_model(name) for name in TILE_NAMES}

    def count_passes(self, strength: float, *, fast: bool = False) -> int:
        """Return how often the picture is read."""
        return 2 if fast else 3 if strength == 1.0 else 4

    def paint(
        self,
        content: BandSource,
        style: FloatArray,
        strength: float = 1.0,
        report: Report = report_nothing,
        *,
        fast: bool = False,
    ) -> Iterator[Image]:
        """Paint a content in an encoded style [L]: rows from the top, uint8 RGB [H,W,3], band after band.

        `strength`: as in `Stylizer.stylize`. `fast`: with the statistics of a reduced picture instead of the content's
        own, which shifts its colours and contrasts a little.

        Raises: ValueError for a strength outside 0..1.
        """
        tiles = self.paint_values(content, style, strength, report, fast=fast)
        yield from self.join_tiles(content.width, tiles)

    def paint_values(
        self,
        content: BandSource,
        style: FloatArray,
        strength: float = 1.0,
        report: Report = report_nothing,
        *,
        fast: bool = False,
    ) -> Iterator[tuple[Tile, FloatArray]]:
        """Do what `paint` does; yield each tile with its values [3,H,W] in the model's range."""
        seen, done = content, report
        if fast:
            seen, done = ArrayBands(reduce_bands(content, REDUCED_PIXELS, report)), report_nothing
        return self.paint_tiles(content, self.measure(seen, style, strength, done), report)

    def measure(
        self, content: BandSource, style: FloatArray, strength: float = 1.0, report: Report = report_nothing
    ) -> FloatArray:
        """Measure what a tile must know of the whole content: float32 [M].

        It is the style, mixed with the content's own as `strength` says, and the statistics of both places, in turn.

        Raises: ValueError for a strength outside 0..1.
        """
        check_strength(strength)
        if strength < 1.0:
            style = mix_styles([style, self.encode_whole(content, report)], [strength, 1.0 - strength])
        given: dict[str, FloatArray] = {"style": style[None]}
        given["quarter"] = self.measure_features(TILE_CONTENT_NAME, content, {}, QUARTER, report)
        given["half"] = self.measure_features(TILE_HALF_NAME, content, given, HALF, report)
        return np.concatenate([values[0] for values in given.values()])

    def paint_tiles(
        self, content: BandSource, measured: FloatArray, report: Report = report_nothing
    ) -> Iterator[tuple[Tile, FloatArray]]:
        """Paint a content by what `measure` gave, for it or for one like it; yield as `paint_values` does."""
        engine, given = self.engines[TILE_FULL_NAME], self.split_measured(measured)
        for tiles in cut_tiles(content, self.halos[TILE_FULL_NAME], STRIDE):
            for tile in tiles:
                (made,) = engine.run(["output"], {**given, "content": self.prepare(tile)})
                height, width = tile.rows.stop - tile.rows.start, tile.columns.stop - tile.columns.start
                yield tile, tile.cut(made[0], 1)[:, :height, :width]
            report(tiles[0].rows.stop - tiles[0].rows.start)

    def split_measured(self, measured: FloatArray) -> dict[str, FloatArray]:
        """Split what `measure` gave into the inputs of the painting model, [1,...] each."""
        style, quarter = (self.lengths[name] for name in ("style", "quarter"))
        parts = np.split(measured[None], [style, style + quarter], axis=1)
        return dict(zip(("style", "quarter", "half"), parts, strict=True))

    def join_tiles(self, width: int, tiles: Iterable[tuple[Tile, FloatArray]]) -> Iterator[Image]:
        """Join tiles of a picture `width` px wide to bands, uint8 RGB [H,W,3]."""
        for tile, values in tiles:
            if tile.columns.start == 0:
                painted = np.empty((tile.rows.stop - tile.rows.start, width, 3), np.uint8)
            painted[:, tile.columns] = denormalize_crops(values[None], self.picture)[0]
            if tile.columns.stop == width:
                yield painted

    def measure_features(
        self, name: str, content: BandSource, given: Mapping[str, FloatArray], stride: int, report: Report
    ) -> FloatArray:
        """Measure means and deviations [1,2C] of what a model makes of the whole content."""
        engine, moments = self.engines[name], Moments()
        (output,) = engine.outputs
        for tiles in cut_tiles(content, self.halos[name], STRIDE):
            for tile in tiles:
                (made,) = engine.run([output], {**given, "content": self.prepare(tile)})
                moments.add(tile.cut(made[0], stride))
            report(tiles[0].rows.stop - tiles[0].rows.start)
        return join(moments)[None]

    def encode_whole(self, content: BandSource, report: Report) -> FloatArray:
        """Encode the style of a picture at its own resolution [L], as `Stylizer.encode_whole`."""
        engine, quarter, half = self.engines[TILE_STYLE_NAME], Moments(), Moments()
        for tiles in cut_tiles(content, self.halos[TILE_STYLE_NAME], STRIDE):
            for tile in tiles:
                made = engine.run(["quarter", "half"], {"picture": self.prepare(tile)})
                quarter.add(tile.cut(made[0][0], QUARTER))
                half.add(tile.cut(made[1][0], HALF))
            report(tiles[0].rows.stop - tiles[0].rows.start)
        style: FloatArray = np.concatenate([join(quarter), join(half)])
        return style.clip(self.style.minimum, self.style.maximum)

    def prepare(self, tile: Tile) -> FloatArray:
        return normalize_crops(tile.pixels[None], self.picture)


def reduce_bands(content: BandSource, pixels: int, report: Report) -> Image:
    """Reduce a picture by a whole factor to at most about `pixels`: uint8 RGB [H,W,3]."""
    factor = max(1, math.ceil(math.sqrt(content.width * content.height / pixels)))
    parts = []
    for band in content.bands(choose_band_height(content.width, 0, factor)):
        height, width = (max(1, side // factor) for side in band.pixels.shape[:2])
        parts.append(cv2.resize(band.pixels, (width, height), interpolation=cv2.INTER_AREA))
        report(band.stop - band.start)
    return np.concatenate(parts).astype(np.uint8, copy=False)


def join(moments: Moments) -> FloatArray:
    """Return means and deviations, one after the other: float32 [2C]."""
    deviation = np.sqrt(moments.variance + FLOOR_VARIANCE)
    return np.concatenate([moments.mean, deviation]).astype(np.float32)
