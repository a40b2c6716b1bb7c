"""One process of the benchmark: `python -m fusionray.benchmarks.style.work MODE BUNDLE CONTENT STYLE OUTPUT THREADS`.

It stylizes a file and prints a line of JSON: seconds from file to file without the start of the process, and its
largest resident memory, MiB. MODE is `whole`, `tiled` or `fast`, or one of these with `-values`: then OUTPUT becomes a
.npy file of the values [3,H,W], and neither time nor memory means anything.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fusionray.bands.reader import ROWS_BYTES, BandReader
from fusionray.bands.writer import BandOutput, BandWriter
from fusionray.bundle.bundle import read_bundle
from fusionray.faces.face import Image
from fusionray.hardware.memory import return_freed_memory
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.pixels import FloatArray, normalize_crops
from fusionray.runtime.style_transfer.styles import STRIDE
from fusionray.runtime.style_transfer.stylizer import Stylizer
from fusionray.runtime.style_transfer.tiled_stylizer import TiledStylizer
from fusionray.runtime.style_transfer.tiles import pad_picture


def main(arguments: Sequence[str]) -> None:
    """Stylize and report."""
    mode, bundle, content, style, output, threads = arguments
    return_freed_memory(ROWS_BYTES)
    settings = RuntimeConfig(threads=int(threads))
    way, values = mode.removesuffix("-values"), mode.endswith("-values")
    stylizer = Stylizer(read_bundle(bundle), settings)
    encoded = stylizer.encode_style(read_whole(style))
    tiled = None if way == "whole" else stylizer.tiled
    started = time.perf_counter()
    if values:
        np.save(output, make_values(stylizer, content, encoded, fast=way == "fast", tiled=tiled))
    else:
        reader = BandReader(Path(content))
        with BandWriter(Path(output), reader.width, reader.height, BandOutput("png")) as writer:
            for rows in paint(stylizer, content, encoded, fast=way == "fast", tiled=tiled):
                writer.write(rows)
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "peak_mib": read_peak_mib()}))


def read_peak_mib() -> float:
    """Return the most memory that this process has held, MiB (getrusage would count that of its parent, too)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def read_whole(file: str) -> Image:
    return np.concatenate([band.pixels.copy() for band in BandReader(Path(file)).bands(256)])


def paint(
    stylizer: Stylizer, content: str, style: FloatArray, *, fast: bool, tiled: TiledStylizer | None
) -> Iterator[Image]:
    """Paint a content as a whole or in tiles."""
    if tiled is None:
        yield stylizer.paint_whole(read_whole(content), style)
    else:
        yield from tiled.paint(BandReader(Path(content)), style, fast=fast)


def make_values(
    stylizer: Stylizer, content: str, style: FloatArray, *, fast: bool, tiled: TiledStylizer | None
) -> FloatArray:
    """Return the values of the painted picture before they are rounded to pixels: [3,H,W] in the model's range."""
    if tiled is None:
        picture = read_whole(content)
        batch = normalize_crops(pad_picture(picture, STRIDE)[None], stylizer.picture)
        (made,) = stylizer.painter.run(["output"], {"content": batch, "style": style[None]})
        whole: FloatArray = made[0][:, : picture.shape[0], : picture.shape[1]]
        return whole
    reader = BandReader(Path(content))
    values = np.empty((3, reader.height, reader.width), np.float32)
    for tile, part in tiled.paint_values(reader, style, fast=fast):
        values[:, tile.rows, tile.columns] = part
    return values


if __name__ == "__main__":
    main(sys.argv[1:])
