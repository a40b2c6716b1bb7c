from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fusionray.bands.reader import BandReader
from fusionray.benchmarks.findings import load_keys
from fusionray.benchmarks.style.config import PARTS, StyleBenchConfig
from fusionray.benchmarks.style.run import MEASURES, bench_style, draw_content, write_content


def test_each_part_has_keys_and_a_measure() -> None:
    assert set(MEASURES) == set(PARTS) == {key.part for key in load_keys("style").values()}


def test_a_content_is_the_same_in_memory_and_in_its_file(tmp_path: Path) -> None:
    size = (300, 700)
    file = write_content(size, tmp_path / "content.png")
    pixels = np.concatenate([band.pixels.copy() for band in BandReader(file).bands(100)])
    np.testing.assert_array_equal(pixels, draw_content(size, range(700)))


@pytest.mark.slow(seconds=60)
def test_every_key_is_measured_on_small_pictures(tmp_path: Path, style_folder: Path) -> None:
    config = StyleBenchConfig(
        output=str(tmp_path / "bench"),
        run=str(style_folder / "run"),
        threads=1,
        rounds=1,
        small=(64, 64),
        medium=(128, 96),
        large=(400, 300),
        huge=(800, 200),
    )
    result = bench_style(config)
    assert result.figures.not_measured == {}
    assert set(result.figures.figures) == {*load_keys("style"), *load_keys("machine")}
    assert result.figures.figures["tiled_max_difference"].value < 1e-3
    assert result.figures.figures["tiled_max_difference_fast"].value < 1
    assert (tmp_path / "bench" / "report.html").exists()
    assert [path.name for path in (tmp_path / "bench").iterdir() if path.name.startswith("pictures-")] == []
