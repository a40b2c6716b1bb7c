"""`fusionray stylize`: a picture in the style of others, signed as `fuse` signs; bad input is one clear line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from fusionray.bundle.bundle import bundle_hash, read_bundle
from fusionray.cli import main
from fusionray.safety.verify import verify
from tests.support.tiny_bundle import write_tiny_bundle

pytestmark = pytest.mark.filterwarnings("ignore:.*TEST KEY:RuntimeWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, style_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("stylize")
    (folder / "bundle").symlink_to(style_folder / "bundle")
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for seed, (name, side) in enumerate({"content.png": 130, "style.png": 40, "ink.png": 48}.items()):
        pixels = np.random.default_rng(seed).integers(0, 256, (side, side + 6, 3), dtype=np.uint8)
        Image.fromarray(pixels // (seed + 1)).save(folder / name, icc_profile=profile)
    (folder / "text.png").write_text("no picture")
    return folder


def arguments(folder: Path, output: str, *more: str, style: str = "style.png") -> list[str]:
    files = [str(folder / name) for name in ("content.png", style, output)]
    return ["stylize", *files, "--bundle", str(folder / "bundle"), *more]


@pytest.mark.parametrize("output", ["out.png", "out.jpg", "deep/er/out.webp"])
def test_the_result_is_signed_and_keeps_size_and_colour_profile(
    folder: Path, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(folder, output, "--mark")) == 0
    assert "painted in 1 style(s) with tiny; signed as AI-made" in capsys.readouterr().out
    verdict, bundle = verify((folder / output).read_bytes()), read_bundle(str(folder / "bundle"))
    assert verdict.holds
    assert (verdict.model, verdict.bundle) == (bundle.description.name, bundle_hash(bundle))
    with Image.open(folder / output) as made:
        assert made.size == (136, 130)
        assert made.info["icc_profile"]


def test_strength_and_further_styles_change_the_result(folder: Path) -> None:
    chosen: dict[str, list[str]] = {
        "whole.png": [],
        "half.png": ["--strength", "0.5"],
        "mixed.png": ["--style", str(folder / "ink.png")],
        "first.png": ["--style", str(folder / "ink.png"), "--weights", "1,0"],
    }
    made = {}
    for name, more in chosen.items():
        assert main(arguments(folder, name, *more)) == 0
        with Image.open(folder / name) as picture:
            made[name] = np.asarray(picture)
    np.testing.assert_array_equal(made["first.png"], made["whole.png"])
    for name in ("half.png", "mixed.png"):
        assert (made[name] != made["whole.png"]).any()


BAD_INPUT: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "out.gif: the name of the result must end in .png, .jpg or .webp": ("style.png", "out.gif", ()),
    "strength 1.2: give a number from 0": ("style.png", "out.png", ("--strength", "1.2")),
    "2 weights for 1 styles; give one for each style": ("style.png", "out.png", ("--weights", "1,2")),
    "weights x: give numbers, separated by commas": ("style.png", "out.png", ("--weights", "x")),
    "weights 0: must be at least 0, and not all 0": (
        "style.png",
        "o.png",
        ("--weights", "0"),
    ),
    "none.png: cannot be read": ("none.png", "out.png", ()),
    "text.png: ": ("text.png", "out.png", ()),
    "certificate and key belong together": ("style.png", "out.png", ("--key", "key.pem")),
}


@pytest.mark.parametrize("said", BAD_INPUT)
def test_bad_input_is_one_clear_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str
) -> None:
    style, output, more = BAD_INPUT[said]
    given = arguments(folder, output, *more, style=style)
    given[3] = str(tmp_path / output)
    assert main(given) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("fusionray stylize: ")
    assert said in printed
    assert printed.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_of_another_task_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_bundle(tmp_path / "faces")
    given = arguments(folder, "out.png")
    assert main([*given[:-1], str(tmp_path / "faces")]) == 1
    assert "is a bundle of the task face_fusion, and one of style_transfer is needed here" in capsys.readouterr().err
