from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from fusionray.bundle.bundle import Bundle, read_bundle
from fusionray.cli import main
from fusionray.errors import BundleInvalid
from fusionray.export.facefusion import write_facefusion
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.crop_fuser import CropFuser
from fusionray.runtime.providers import CPU
from fusionray.runtime.source_encoding import open_source_encoder
from tests.export.test_import_onnx import MATRIX, PLAIN, import_bundle
from tests.support.outside_models import build_swapper
from tests.support.tiny_bundle import write_tiny_bundle
from tests.support.tiny_fusion import SEEING
from tests.support.tiny_world import save_fusion

ON_CPU = RuntimeConfig(providers=(CPU,), threads=1)
# How that program cuts and writes a source that is a picture.
SOURCE_SIZES = {"blendswap": 112, "uniface": 256}


def swap_as_facefusion_does(
    model: Path, entry: dict[str, Any], source_bgr: NDArray[np.uint8], crop_bgr: NDArray[np.uint8]
) -> NDArray[np.floating]:
    """Process a crop as FaceFusion does around a model: BGR from OpenCV, one face, the first output."""
    mean, deviation = np.array(entry["mean"]), np.array(entry["standard_deviation"])
    assert crop_bgr.shape[:2] == tuple(entry["size"])
    source = (source_bgr[..., ::-1] / 255.0).transpose(2, 0, 1)[None].astype(np.float32)
    target = ((crop_bgr[..., ::-1] / 255.0 - mean) / deviation).transpose(2, 0, 1)[None].astype(np.float32)
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    known = {"source": source, "target": target}
    result = session.run(None, {port.name: known[port.name] for port in session.get_inputs()})[0][0].transpose(1, 2, 0)
    if entry["type"] == "uniface":
        result = result * deviation + mean
    return np.asarray(result.clip(0, 1)[..., ::-1] * 255)


def check_same(bundle: Bundle, folder: Path) -> dict[str, Any]:
    written = write_facefusion(bundle, folder)
    entry: dict[str, Any] = json.loads(written.entry.read_text())["entry"]
    assert written.hash.read_text() == format(zlib.crc32(written.model.read_bytes()), "08x")
    random, side = np.random.default_rng(8), SOURCE_SIZES[entry["type"]]
    face = random.integers(0, 256, (side, side, 3), dtype=np.uint8)
    crop = random.integers(0, 256, (bundle.description.size, bundle.description.size, 3), dtype=np.uint8)
    fused = CropFuser(bundle, ON_CPU).fuse(open_source_encoder(bundle, ON_CPU).encode_crops(face[None]), crop[None])
    wanted = crop + fused.masks[0][..., None] * (fused.crops[0].astype(np.float32) - crop)
    found = swap_as_facefusion_does(written.model, entry, face[..., ::-1], crop[..., ::-1])[..., ::-1]
    assert np.abs(found - wanted).max() <= 1.0
    assert np.abs(found - crop).mean() > 0.5
    return entry


def test_an_exported_bundle_gives_the_same_crop_in_facefusion(tmp_path: Path) -> None:
    entry = check_same(write_tiny_bundle(tmp_path / "bundle"), tmp_path / "there")
    assert (entry["type"], entry["template"], entry["size"]) == ("blendswap", "arcface_128", [64, 64])
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["tiny.hash", "tiny.json", "tiny.onnx"]


@pytest.mark.slow(seconds=18)
def test_a_generator_with_source_tokens_gives_the_same_crop_in_facefusion(tmp_path: Path) -> None:
    save_fusion(tmp_path / "run", generator=SEEING)
    assert main(["export", str(tmp_path / "run"), "--output", str(tmp_path / "bundle"), "licence=x"]) == 0
    bundle = read_bundle(tmp_path / "bundle")
    assert bundle.source_length > 512
    check_same(bundle, tmp_path / "there")
    assert (
        main(["export", str(tmp_path / "bundle"), "--layout", "facefusion", "--output", str(tmp_path / "again")]) == 0
    )
    names = ("tiny.onnx", "tiny.hash", "tiny.json")
    assert [(tmp_path / "again" / name).read_bytes() for name in names] == [
        (tmp_path / "there" / name).read_bytes() for name in names
    ]


@pytest.mark.parametrize(
    "options",
    [
        ("mask=[0, 20]",),
        ("target.order=bgr", "produced={minimum: -1, maximum: 2}", "encoder={minimum: -1, maximum: 1, order: bgr}"),
        ("embedding.matrix=none", "embedding.unit_before=false", "embedding.unit_after=true"),
    ],
)
def test_ranges_channel_orders_masks_and_matrices_are_merged_into_the_model(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    swapper = build_swapper(["N", 512], ["N", 3, 64, 64], mask="alpha", names=("a", "b", "c"), unused=MATRIX)
    check_same(import_bundle(tmp_path, swapper, *PLAIN, *options), tmp_path / "there")


@pytest.mark.parametrize("like", ["simswap_256", "uniface_256", "blendswap_256", "inswapper_128"])
def test_imported_models_can_be_exported_for_facefusion(tmp_path: Path, like: str) -> None:
    sources: dict[str, list[str | int]] = {"uniface_256": [1, 3, 256, 256], "blendswap_256": [1, 3, 112, 112]}
    source, size = sources.get(like, [1, 512]), 128 if like == "inswapper_128" else 256
    options = ("picture", "licence=x") if like in sources else ("licence=x",)
    bundle = import_bundle(tmp_path, build_swapper(source, [1, 3, size, size]), *options, like=like)
    entry = check_same(bundle, tmp_path / "there")
    assert entry["type"] == ("uniface" if like == "uniface_256" else "blendswap")


def test_a_source_that_facefusion_cannot_align_is_refused(tmp_path: Path) -> None:
    swapper = build_swapper([1, 3, 128, 128], [1, 3, 256, 256], names=("source", "target", "output"))
    bundle = import_bundle(tmp_path, swapper, *PLAIN, "picture", "source_template=arcface_128")
    with pytest.raises(
        BundleInvalid, match="cut at arcface_128, 128 px, and FaceFusion cuts them at arcface_112 at 112"
    ):
        write_facefusion(bundle, tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_a_model_that_takes_two_faces_is_refused(tmp_path: Path) -> None:
    bundle = import_bundle(tmp_path, build_swapper([2, 512], [2, 3, 64, 64]), *PLAIN)
    with pytest.raises(BundleInvalid, match="takes 2 faces at a time"):
        write_facefusion(bundle, tmp_path / "there")


def test_precisions_have_no_effect_on_the_facefusion_layout_and_warn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", "x", "--layout", "facefusion", "--output", str(tmp_path / "there"), "--precision", "fp16"]
    assert main(command) == 1
    assert "--precision has no effect" in capsys.readouterr().err
