"""A bundle with a face parser carries the source's skin over the head of the target, in pictures and in films."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from fusionray.bundle.bundle import Bundle, read_bundle
from fusionray.cli import main
from fusionray.errors import BundleInvalid
from fusionray.faces.align import estimate_alignment, load_template, region_under
from fusionray.faces.blending.skin import Skin
from fusionray.faces.detectors.factory import build_detector
from fusionray.faces.face import Image
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.compile import list_models
from fusionray.runtime.engines.providers import CPU
from fusionray.runtime.fuser import Fuser
from fusionray.runtime.head_parser import HeadParser, open_parser
from fusionray.video.files.reader import VideoReader
from tests.support.head_parsers import PARTS, SIZE, build_parser, write_parser_bundle
from tests.support.pictures import draw_person
from tests.support.tiny_bundle import TINY_SIZE, write_tiny_bundle
from tests.video.films import film

ON_CPU = RuntimeConfig(providers=(CPU,), threads=1)
SIDE = 480
TARGET = 2


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_parser_bundle(tmp_path_factory.mktemp("parsed") / "bundle")


def fuse(bundle: Bundle, skin: Skin = "source", strength: float = 1.0) -> Image:
    fuser = Fuser(bundle, build_detector("default"), ON_CPU, skin=skin)
    return fuser.fuse(draw_person(1, SIDE), draw_person(TARGET, SIDE), strength=strength).image


def outside(changed: Image, target: Image) -> np.ndarray:
    """Return how much pixels outside of the crop of the face changed."""
    landmarks = build_detector("default").detect(target)[0].landmarks
    matrix = estimate_alignment(landmarks, load_template("arcface_128"), TINY_SIZE)
    left, top, right, bottom = region_under(matrix, TINY_SIZE, TINY_SIZE, target)
    difference = np.abs(changed.astype(int) - target).max(axis=-1)
    difference[top:bottom, left:right] = 0
    return difference


def test_skin_outside_of_the_crop_changes_with_the_face(bundle: Bundle, tmp_path: Path) -> None:
    target = draw_person(TARGET, SIDE)
    carried = outside(fuse(bundle), target)
    assert (carried > 20).mean() > 0.005
    # Above is background, whatever its colour.
    assert not carried[: SIDE // 8].any()
    assert not outside(fuse(bundle, "target"), target).any()
    assert not outside(fuse(write_tiny_bundle(tmp_path / "plain")), target).any()


def test_strength_is_that_of_the_skin_too(bundle: Bundle) -> None:
    target = draw_person(TARGET, SIDE)
    whole, less = (outside(fuse(bundle, strength=strength), target) for strength in (1.0, 0.4))
    assert not outside(fuse(bundle, strength=0.0), target).any()
    changed = whole > 20
    assert less[changed].mean() / whole[changed].mean() == pytest.approx(0.4, abs=0.08)


def test_a_weak_fusion_has_the_skin_that_is_asked_for_too(bundle: Bundle) -> None:
    source, target = (fuse(bundle, skin, strength=0.4).astype(int) for skin in ("source", "target"))
    middle = np.s_[SIDE // 2 - 30 : SIDE // 2 + 30, SIDE // 2 - 30 : SIDE // 2 + 30]
    own = draw_person(TARGET, SIDE).astype(int)[middle].mean(axis=(0, 1))
    distances = [np.abs(made[middle].mean(axis=(0, 1)) - own).mean() for made in (source, target)]
    assert distances[1] < 0.7 * distances[0]


def test_a_bundle_keeps_what_it_says_of_its_parser(bundle: Bundle) -> None:
    again = read_bundle(bundle.folder)
    assert again.description.parser is not None
    assert again.description.parser.parts == PARTS
    assert "parser.onnx" in [name for name, _ in list_models(again, ())]
    parser = open_parser(again, ON_CPU)
    assert parser is not None
    shares = parser.find_skin(np.zeros((SIZE, SIZE, 3), np.uint8))
    assert shares[: SIZE // 4].max() < 0.1
    assert shares[SIZE // 4 :].min() > 0.9


def test_a_bundle_without_a_parser_is_described_as_before(tmp_path: Path) -> None:
    plain = write_tiny_bundle(tmp_path / "plain")
    assert "parser" not in json.loads((plain.folder / "bundle.json").read_text())
    assert open_parser(plain, ON_CPU) is None


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"template": "profile"}, "template profile is unknown"),
        ({"parts": ("sky", "sea", "land")}, "no parser of skin"),
        ({"parser": build_parser("labels")}, "the output 'parts'"),
    ],
)
def test_a_wrong_parser_is_refused_in_one_line(tmp_path: Path, changes: dict[str, object], fault: str) -> None:
    wrong = write_parser_bundle(tmp_path / "bundle", **changes)  # type: ignore[arg-type]
    with pytest.raises(BundleInvalid, match=fault) as raised:
        HeadParser(wrong, ON_CPU)
    assert "\n" not in str(raised.value)


@pytest.mark.filterwarnings("ignore:outputs are signed with a generated TEST KEY:RuntimeWarning")
def test_a_film_gets_it_too(bundle: Bundle, tmp_path: Path) -> None:
    source = tmp_path / "source.png"
    Pillow.fromarray(draw_person(1, SIDE)).save(source)
    target = film(tmp_path / "film.mp4", num_frames=3)
    frames = {}
    for skin in ("source", "target"):
        output = tmp_path / f"{skin}.mp4"
        command = ["fuse-video", str(source), target, str(output), "--bundle", str(bundle.folder), "--quality", "5"]
        assert main([*command, "--skin", skin]) == 0
        reader = VideoReader(output)
        frames[skin] = np.stack([reader.see(frame, 1000) for frame in reader.read_frames()]).astype(int)
    seen = VideoReader(Path(target))
    before = np.stack([seen.see(frame, 1000) for frame in seen.read_frames()]).astype(int)
    source_changes, target_changes = (
        (np.abs(frames[skin] - before).max(axis=(0, 3)) > 25).mean() for skin in ("source", "target")
    )
    assert source_changes > 1.05 * target_changes
