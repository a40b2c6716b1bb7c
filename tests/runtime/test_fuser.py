from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusionray.bundle.bundle import write_bundle
from fusionray.bundle.description import BundleDescription, describe_tensors
from fusionray.errors import BundleInvalid, NoFaceFound
from fusionray.faces.align import estimate_alignment, load_template, region_under
from fusionray.faces.detectors.factory import build_detector
from fusionray.faces.face import Face, Image
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.crop_fuser import MAX_BATCH, CropFuser
from fusionray.runtime.engines.providers import CPU, CUDA
from fusionray.runtime.face_preprocessor import find_largest_face
from fusionray.runtime.fuser import Fuser
from fusionray.runtime.pixels import denormalize_crops
from fusionray.runtime.source_encoding import normalize_source
from tests.support.pictures import draw_empty, draw_group, draw_person
from tests.support.tiny_bundle import TINY_SIZE, build_generator, build_identity, describe_tiny, write_tiny_bundle


def build_fuser(folder: Path, description: BundleDescription | None = None, generator: bytes | None = None) -> Fuser:
    files = {"generator.onnx": generator or build_generator(), "identity.onnx": build_identity()}
    bundle = write_bundle(folder, files, description or describe_tiny())
    return Fuser(bundle, build_detector("default"), RuntimeConfig(providers=(CPU,), threads=1))


@pytest.fixture(scope="module")
def fuser(tmp_path_factory: pytest.TempPathFactory) -> Fuser:
    fuser = build_fuser(tmp_path_factory.mktemp("fuser") / "bundle")
    fuser.warm_up()
    return fuser


def changed_pixels(before: Image, after: Image) -> np.ndarray:
    return np.asarray((before != after).any(axis=2))


def region_of(face: Face, picture: Image) -> tuple[int, int, int, int]:
    matrix = estimate_alignment(face.landmarks, load_template("arcface_128"), TINY_SIZE)
    return region_under(matrix, TINY_SIZE, TINY_SIZE, picture)


def test_an_embedding_has_unit_length_and_depends_on_the_person(fuser: Fuser) -> None:
    first, again, other = (fuser.encode_source(draw_person(seed)) for seed in (1, 1, 2))
    assert first.shape == (512,)
    assert first.dtype == np.float32
    assert np.linalg.norm(first) == pytest.approx(1.0, abs=1e-5)
    assert np.array_equal(first, again)
    assert float(first @ other) < 0.999


def test_pixels_outside_the_face_keep_their_bytes(fuser: Fuser) -> None:
    target = draw_person(2)
    fused = fuser.fuse(draw_person(1), target)
    assert fused.image.shape == target.shape
    assert fused.image.dtype == np.uint8
    left, top, right, bottom = region_of(find_largest_face(fuser.preprocessor.detector, target, "target"), target)
    changed = changed_pixels(target, fused.image)
    assert changed[top:bottom, left:right].mean() > 0.3
    # The model's mask is 1 everywhere: that the rim keeps its bytes as well is the soft box's work.
    assert not changed[[top, bottom - 1]].any()
    assert not changed[:, [left, right - 1]].any()
    changed[top:bottom, left:right] = False
    assert not changed.any()


def test_input_pictures_are_not_modified(fuser: Fuser) -> None:
    source, target = draw_person(1).copy(), draw_person(2).copy()
    fuser.fuse(source, target)
    assert np.array_equal(source, draw_person(1))
    assert np.array_equal(target, draw_person(2))


def test_every_face_or_only_the_largest_is_replaced(fuser: Fuser) -> None:
    small = np.pad(draw_person(3, 128), ((64, 64), (0, 0), (0, 0)), mode="edge")
    group = np.concatenate([small, draw_person(4, 256)], axis=1)
    largest = fuser.fuse(draw_person(1), group)
    everyone = fuser.fuse(draw_person(1), group, "all")
    assert (largest.num_faces, everyone.num_faces) == (1, 2)
    assert len(everyone.boxes) == 2
    assert not changed_pixels(group, largest.image)[:, :100].any()
    assert changed_pixels(group, everyone.image)[:, :100].any()
    assert largest.boxes[0][0] > 100


def test_the_models_see_the_range_that_the_bundle_states(tmp_path: Path, fuser: Fuser) -> None:
    rng = np.random.default_rng(0)
    crops = rng.integers(0, 256, (2, TINY_SIZE, TINY_SIZE, 3), dtype=np.uint8)
    embeddings = np.full((2, 512), 512**-0.5, np.float32)
    tint = 0.5 * 512**-0.5
    fused = fuser.crop_fuser.fuse(embeddings, crops)
    expected = np.rint(np.clip((1 - crops / 255.0 + tint) * 255, 0, 255))
    assert np.abs(fused.crops - expected).max() <= 1
    assert np.array_equal(fused.masks, np.ones((2, TINY_SIZE, TINY_SIZE), np.float32))

    signed = describe_tiny().model_copy(update={"tensors": describe_tensors(TINY_SIZE, -1.0, 1.0)})
    fused = build_fuser(tmp_path / "bundle", signed).crop_fuser.fuse(embeddings, crops)
    seen = crops / 127.5 - 1
    expected = np.rint(np.clip((1 - seen + tint + 1) * 127.5, 0, 255))
    assert np.abs(fused.crops - expected).max() <= 1


def test_the_embedding_of_a_source_gets_unit_length_and_other_values_stay() -> None:
    source = np.random.default_rng(2).normal(size=(2, 520)).astype(np.float32)
    found = normalize_source(source)
    assert np.linalg.norm(found[:, :512], axis=1) == pytest.approx([1.0, 1.0], abs=1e-5)
    assert np.array_equal(found[:, 512:], source[:, 512:])
    assert np.isfinite(normalize_source(np.zeros((1, 512), np.float32))).all()


def test_several_batches_give_the_same_as_single_faces(fuser: Fuser) -> None:
    rng = np.random.default_rng(1)
    crops = rng.integers(0, 256, (MAX_BATCH + 3, TINY_SIZE, TINY_SIZE, 3), dtype=np.uint8)
    sources = np.stack([fuser.encode_source(draw_person(seed)) for seed in range(len(crops))])
    together = fuser.crop_fuser.fuse(sources, crops).crops
    alone = [fuser.crop_fuser.fuse(sources[k : k + 1], crops[k : k + 1]).crops[0] for k in range(len(crops))]
    assert np.array_equal(together, alone)


def test_a_gpu_is_warmed_up_with_every_size_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuser = CropFuser(write_tiny_bundle(tmp_path), RuntimeConfig(threads=1), max_batch=3)
    sizes: list[int] = []
    run = fuser.engine.run

    def record(outputs: Any, inputs: Any) -> Any:
        sizes.append(len(next(iter(inputs.values()))))
        return run(outputs, inputs)

    monkeypatch.setattr(fuser.engine, "run", record)
    fuser.warm_up()
    monkeypatch.setattr(fuser.engine, "report", replace(fuser.report, provider=CUDA))
    fuser.warm_up()
    assert sizes == [1, 1, 2, 3]


def test_non_finite_outputs_become_pixels(fuser: Fuser) -> None:
    broken = np.array([np.nan, np.inf, -np.inf, 0.5], np.float32).reshape(1, 1, 2, 2).repeat(3, axis=1)
    assert denormalize_crops(broken, fuser.crop_fuser.described["output"])[0, :, :, 0].tolist() == [[0, 255], [0, 128]]


def test_the_error_names_the_picture_without_a_face(fuser: Fuser) -> None:
    with pytest.raises(NoFaceFound, match="source picture"):
        fuser.fuse(draw_empty(), draw_person(1))
    with pytest.raises(NoFaceFound, match="target picture"):
        fuser.fuse(draw_person(1), draw_empty())


@dataclass
class FixedDetector:
    landmarks: np.ndarray

    def detect(self, image: Image, *, only_largest: bool = False) -> list[Face]:
        return [Face(np.array([0, 0, 9, 9], np.float32), self.landmarks, 1.0)]


@pytest.mark.parametrize("value", [5.0, np.nan])
def test_a_face_with_degenerate_landmarks_is_ignored(tmp_path: Path, value: float) -> None:
    detector = FixedDetector(np.full((5, 2), value, np.float32))
    with pytest.raises(NoFaceFound):
        Fuser(write_tiny_bundle(tmp_path / "bundle"), detector).encode_source(draw_empty())


def test_the_report_describes_the_engine(fuser: Fuser) -> None:
    assert (fuser.crop_fuser.report.provider, fuser.crop_fuser.report.threads) == (CPU, 1)


@pytest.mark.parametrize(
    ("generator", "complaint"),
    [
        (build_generator(batch=1), "fixed batch 1"),
        (build_generator(source="face"), "no input 'source'"),
        (build_generator(size=32), r"input 'target' is .*32, 32\], not \[N, 3, 64, 64\]"),
    ],
)
def test_models_that_are_not_supported_are_refused_clearly(tmp_path: Path, generator: bytes, complaint: str) -> None:
    with pytest.raises(BundleInvalid, match=rf"generator\.onnx: .*{complaint}"):
        build_fuser(tmp_path / "bundle", generator=generator)


def test_an_unknown_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleInvalid, match="no_such_template"):
        build_fuser(tmp_path / "bundle", describe_tiny(template="no_such_template"))


def test_faces_side_by_side_are_all_found(fuser: Fuser) -> None:
    fused = fuser.fuse(draw_person(1), draw_group((5, 6, 7)), "all")
    assert fused.num_faces == 3


def test_the_bundle_says_whose_skin_faces_have_and_the_caller_may_say_otherwise(tmp_path: Path, fuser: Fuser) -> None:
    source, target = draw_person(1), draw_person(2)
    own = fuser.fuse(source, target).image
    assert "skin" not in describe_tiny().to_json(), "hashes of older bundles stay"
    described = describe_tiny().model_copy(update={"skin": "target"})
    matching = build_fuser(tmp_path / "bundle", described)
    assert matching.bundle.description.skin == "target"
    matched = matching.fuse(source, target).image
    # The model inverts colours.
    apart = [np.abs(made.astype(int) - target).mean() for made in (own, matched)]
    assert apart[1] < 0.85 * apart[0]
    asked = Fuser(matching.bundle, matching.preprocessor.detector, RuntimeConfig(providers=(CPU,)), skin="source")
    assert np.array_equal(asked.fuse(source, target).image, own)


def test_a_grey_target_stays_grey(fuser: Fuser) -> None:
    grey = np.repeat(draw_person(2).mean(axis=2, keepdims=True), 3, axis=2).astype(np.uint8)
    fused = fuser.fuse(draw_person(1), grey).image
    assert changed_pixels(grey, fused).any()
    assert np.ptp(fused.astype(int), axis=2).max() == 0
