"""`fusionray stylize` on pictures that are too large to decode whole, from file to file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from fusionray.cli import main
from fusionray.faces.image_files.decode import ImageLimits
from fusionray.runtime.style_transfer import stylizer, tiles
from fusionray.safety.verify import verify
from tests.support.full_disk import full_disk

pytestmark = pytest.mark.filterwarnings("ignore:.*TEST KEY:RuntimeWarning")


@pytest.fixture
def folder(tmp_path: Path, style_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with pictures, of which the content is large: over the limit that is lowered for the test."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for seed, (name, size) in enumerate({"content.png": (301, 203), "style.png": (40, 46)}.items()):
        pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / name, icc_profile=profile)
    (tmp_path / "bundle").symlink_to(style_folder / "bundle")
    monkeypatch.setattr(ImageLimits.__init__, "__defaults__", (32 * 2**20, 50_000, 16_384, 16))
    monkeypatch.setattr(tiles, "LARGEST_BAND", 64)
    monkeypatch.setattr(tiles, "TILE_PIXELS", 20_000)
    return tmp_path


def arguments(folder: Path, output: str, *more: str) -> list[str]:
    files = [str(folder / name) for name in ("content.png", "style.png", output)]
    return ["stylize", *files, "--bundle", str(folder / "bundle"), *more]


def read(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture).astype(int)


def test_the_result_is_that_of_a_picture_that_is_decoded_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(arguments(folder, "large.png", "--mark", "--strength", "0.7")) == 0
    monkeypatch.setattr(ImageLimits.__init__, "__defaults__", (32 * 2**20, 10**6, 16_384, 16))
    assert main(arguments(folder, "whole.png", "--mark", "--strength", "0.7")) == 0
    monkeypatch.setattr(stylizer, "WHOLE_PIXELS", 1000)
    assert main(arguments(folder, "tiles.png", "--mark", "--strength", "0.7")) == 0
    for name in ("large.png", "tiles.png"):
        assert np.abs(read(folder / name) - read(folder / "whole.png")).max() <= 1


@pytest.mark.parametrize("output", ["deep/er/out.png", "out.jpg", "out.tif"])
def test_it_is_signed_and_keeps_its_colour_profile(
    folder: Path, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(folder, output)) == 0
    assert "signed as AI-made" in capsys.readouterr().out
    assert verify((folder / output).read_bytes()).holds
    with Image.open(folder / output) as made:
        assert made.size == (203, 301)
        assert made.info["icc_profile"]
    assert [path.name for path in (folder / output).parent.iterdir() if path.name.startswith(".")] == []


def test_what_cannot_be_written_is_one_line_and_leaves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in folder.iterdir())
    for output, more, said in (
        ("out.webp", (), "must end in .png, .jpg or .tif"),
        ("out.png", ("--metadata", "all"), "keeps its colours alone"),
    ):
        assert main(arguments(folder, output, *more)) == 1
        assert said in capsys.readouterr().err.splitlines()[-1]
    with full_disk(20_000):
        assert main(arguments(folder, "out.png")) == 1
    assert "cannot be written" in capsys.readouterr().err.splitlines()[-1]
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_damaged_picture_is_one_line_and_leaves_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = folder / "content.png"
    content.write_bytes(content.read_bytes()[:90_000])
    before = sorted(path.name for path in folder.iterdir())
    assert main(arguments(folder, "out.png")) == 1
    assert "content.png cannot be decoded" in capsys.readouterr().err.splitlines()[-1]
    assert sorted(path.name for path in folder.iterdir()) == before
