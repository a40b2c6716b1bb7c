"""Faces larger than the model: taken apart into pixel phases, fused, and put together without a grid."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from fusionray.bundle.bundle import write_bundle
from fusionray.faces.align import affine_scale, region_under
from fusionray.faces.detectors.factory import build_detector
from fusionray.faces.face import Image
from fusionray.runtime.config import PixelBoost, RuntimeConfig
from fusionray.runtime.crop_fuser import FusedCrops
from fusionray.runtime.engines.providers import CPU
from fusionray.runtime.fuser import Fuser
from fusionray.runtime.pixel_boost import choose_factor, join_phases, repeat_sources, split_phases
from tests.support.pictures import draw_person
from tests.support.tiny_bundle import TINY_SIZE, build_generator, build_identity, describe_tiny

SIDE = 32


def draw_large(factor: int, seed: int = 1) -> Image:
    """Draw a crop with edges and a little grain."""
    side = SIDE * factor
    drawn = cv2.resize(draw_person(seed, 256), (side, side), interpolation=cv2.INTER_AREA).astype(np.float32)
    grain = np.random.default_rng(0).normal(0, 3, drawn.shape)
    return np.clip(drawn + grain, 20, 235).astype(np.uint8)


def see_grid(crop: Image, factor: int) -> float:
    """Measure what repeats every `factor` pixels, in levels."""
    smooth = cv2.GaussianBlur(crop.astype(np.float32), (0, 0), 2 * factor)
    side = len(crop) // factor
    cell = (crop - smooth).reshape(side, factor, side, factor, 3).mean(axis=(0, 2))
    return float(np.abs(cell - cell.mean(axis=(0, 1))).max())


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_crops_are_put_together_as_they_were(factor: int) -> None:
    crops = np.stack([draw_large(factor, 1), draw_large(factor, 2)])
    phases = split_phases(crops, factor)
    assert phases.shape == (2 * factor**2, SIDE, SIDE, 3)
    assert np.array_equal(phases[1], crops[0, 0::factor, (1 % factor) :: factor] if factor > 1 else crops[1])
    joined = join_phases(FusedCrops(phases, np.ones(phases.shape[:3], np.float32)), factor)
    assert joined.crops.shape == crops.shape
    assert joined.masks.shape == crops.shape[:3]
    assert joined.masks.min() == 1
    # Levelling phases that are level already takes what lies near to the grid's frequency: half of the grain at most.
    assert np.abs(joined.crops.astype(int) - crops).mean() < 2.0


@pytest.mark.parametrize("factor", [2, 4])
def test_a_model_that_gives_phases_other_colours_makes_no_grid(factor: int) -> None:
    crop = draw_large(factor)
    phases = split_phases(crop[None], factor).astype(np.float32)
    # As models do: each phase lighter or darker, more so at one side.
    tilt = np.linspace(0.2, 1, SIDE, dtype=np.float32)[:, None, None]
    biases = np.random.default_rng(3).uniform(-12, 12, (factor**2, 1, 1, 3)).astype(np.float32)
    tinted = np.clip(np.rint(phases + biases * tilt), 0, 255).astype(np.uint8)
    masks = np.ones(tinted.shape[:3], np.float32)
    raw = tinted.reshape(factor, factor, SIDE, SIDE, 3).transpose(2, 0, 3, 1, 4).reshape(crop.shape)
    assert see_grid(raw, factor) > 3
    levelled = join_phases(FusedCrops(tinted, masks), factor).crops[0]
    assert see_grid(levelled, factor) < see_grid(crop, factor) + 0.3
    # What is left is the mean of the biases; edges and grain are those of the crop.
    expected = crop + (biases * tilt).mean(axis=0).repeat(factor, axis=0)
    assert np.abs(levelled - expected).mean() < 2.0


def test_each_face_has_the_phases_and_the_source_of_its_own() -> None:
    faces = np.stack([np.full((SIDE * 2, SIDE * 2, 3), level, np.uint8) for level in (40, 90)])
    sources = repeat_sources(np.array([[1.0], [2.0]], np.float32), 2)
    assert sources.ravel().tolist() == [1.0] * 4 + [2.0] * 4
    assert split_phases(faces, 2).mean(axis=(1, 2, 3)).tolist() == [40.0] * 4 + [90.0] * 4


@pytest.mark.parametrize(
    ("pixels", "boost", "factor"),
    [(50, 4, 1), (90, 4, 1), (100, 4, 2), (150, 4, 2), (170, 4, 4), (900, 4, 4), (900, 2, 2), (900, 1, 1)],
)
def test_only_faces_that_have_the_pixels_are_boosted(pixels: int, boost: PixelBoost, factor: int) -> None:
    large, small = (np.array([[64 / side, 0, 5], [0, 64 / side, 7]]) for side in (pixels, 10))
    assert affine_scale(large) == pytest.approx(64 / pixels)
    assert choose_factor([small, large], boost) == factor


def test_a_boosted_face_keeps_the_detail_of_its_picture(tmp_path: Path) -> None:
    files = {"generator.onnx": build_generator(), "identity.onnx": build_identity()}
    bundle = write_bundle(tmp_path / "bundle", files, describe_tiny())
    settings, detector = RuntimeConfig(providers=(CPU,), threads=1), build_detector("default")
    target = draw_person(2, 768)
    made = {}
    for boost in (1, 2, 4):
        fuser = Fuser(bundle, detector, settings, pixel_boost=boost)
        made[boost] = fuser.fuse(draw_person(1), target).image
    face = fuser.preprocessor.crop_faces(target)
    (left, top, width, height) = map(int, face.boxes[0])
    assert width > 4 * TINY_SIZE
    middle = np.s_[top + height // 4 : top + height // 2, left + width // 4 : left + 3 * width // 4]

    def see_detail(picture: Image) -> float:
        return float(np.abs(cv2.Laplacian(picture[middle].astype(np.float32), cv2.CV_32F)).mean())

    # The model inverts colours, pixel by pixel, so a perfect fusion has the detail of the target.
    single, double, fourfold = (see_detail(made[boost]) for boost in (1, 2, 4))
    # Grain alone comes from the picture in any case (faces.blending.grain).
    assert single < 0.9 * double < 0.9 * 0.9 * fourfold
    # Nothing beyond the crop is changed by it.
    left, top, right, bottom = region_under(face.matrices[0], TINY_SIZE, TINY_SIZE, target)
    changed = (made[4] != target).any(axis=2)
    changed[top:bottom, left:right] = False
    assert not changed.any()


def test_a_boosted_small_face_is_the_same_picture(tmp_path: Path) -> None:
    files = {"generator.onnx": build_generator(), "identity.onnx": build_identity()}
    bundle = write_bundle(tmp_path / "bundle", files, describe_tiny())
    settings, detector = RuntimeConfig(providers=(CPU,), threads=1), build_detector("default")
    source, target = draw_person(1), draw_person(2, 96)
    made = [Fuser(bundle, detector, settings, pixel_boost=boost).fuse(source, target).image for boost in (1, 4)]
    assert np.array_equal(*made)
