from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper

from fusionray.bundle.bundle import Bundle, read_bundle, write_bundle
from fusionray.cli import main
from fusionray.errors import BundleInvalid
from fusionray.export.facefusion import choose_crop_size, write_facefusion
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.crop_fuser import CropFuser
from fusionray.runtime.engines.providers import CPU
from fusionray.runtime.source_encoding import open_source_encoder
from tests.export.test_import_onnx import MATRIX, PLAIN, import_bundle
from tests.support.outside_models import build_swapper
from tests.support.tiny_bundle import build_identity, describe_tiny, serialise, write_tiny_bundle
from tests.support.tiny_fusion import SEEING
from tests.support.tiny_world import save_fusion

ON_CPU = RuntimeConfig(providers=(CPU,), threads=1)
# How that program cuts and writes a source that is a picture.
SOURCE_SIZES = {"blendswap": 112, "uniface": 256}


def swap_as_facefusion_does(
    model: Path, entry: dict[str, Any], source_bgr: NDArray[np.uint8], crop_bgr: NDArray[np.uint8]
) -> NDArray[np.floating]:
    """Process a crop as FaceFusion does around a model: BGR from OpenCV, one face, the first output.

    Pixel boost: of a crop k times the model's, the model sees every k-th pixel of every k-th row, k * k times.
    """
    mean, deviation, side = np.array(entry["mean"]), np.array(entry["standard_deviation"]), entry["size"][0]
    assert crop_bgr.shape[0] == crop_bgr.shape[1]
    assert crop_bgr.shape[0] % side == 0
    boost = crop_bgr.shape[0] // side
    source = (source_bgr[..., ::-1] / 255.0).transpose(2, 0, 1)[None].astype(np.float32)
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    swapped = np.empty(crop_bgr.shape)
    for row, column in np.ndindex(boost, boost):
        part = crop_bgr[row::boost, column::boost]
        target = ((part[..., ::-1] / 255.0 - mean) / deviation).transpose(2, 0, 1)[None].astype(np.float32)
        known = {"source": source, "target": target}
        result = session.run(None, {port.name: known[port.name] for port in session.get_inputs()})[0][0]
        result = result.transpose(1, 2, 0)
        if entry["type"] == "uniface":
            result = result * deviation + mean
        swapped[row::boost, column::boost] = result.clip(0, 1)[..., ::-1] * 255
    return swapped


def paste_enlarged(bundle: Bundle, face: NDArray[np.uint8], crop: NDArray[np.uint8]) -> NDArray[np.floating]:
    """Fuse a crop reduced to the size of the bundle, enlarge the result to the crop, and paste it by the mask."""
    side, size = bundle.description.size, crop.shape[:2]
    reduced = cv2.resize(crop, (side, side), interpolation=cv2.INTER_AREA)
    fused = CropFuser(bundle, ON_CPU).fuse(open_source_encoder(bundle, ON_CPU).encode_crops(face[None]), reduced[None])
    colour = cv2.resize(fused.crops[0], size, interpolation=cv2.INTER_CUBIC).astype(np.float32)
    mask = cv2.resize(fused.masks[0], size, interpolation=cv2.INTER_LINEAR)
    return np.asarray(crop + mask[..., None] * (colour - crop))


def check_same(bundle: Bundle, folder: Path) -> dict[str, Any]:
    written = write_facefusion(bundle, folder)
    entry: dict[str, Any] = json.loads(written.entry.read_text())["entry"]
    # FaceFusion 3.8 compares the whole file: a newline at its end would be an error.
    assert written.hash.read_bytes() == format(zlib.crc32(written.model.read_bytes()), "08x").encode()
    random, side = np.random.default_rng(8), SOURCE_SIZES[entry["type"]]
    face = random.integers(0, 256, (side, side, 3), dtype=np.uint8)
    crop = random.integers(0, 256, (bundle.description.size, bundle.description.size, 3), dtype=np.uint8)
    factor = entry["size"][0] // bundle.description.size
    crop = crop.repeat(factor, axis=0).repeat(factor, axis=1)
    found = swap_as_facefusion_does(written.model, entry, face[..., ::-1], crop[..., ::-1])[..., ::-1]
    assert np.abs(found - paste_enlarged(bundle, face, crop)).max() <= 1.5
    assert np.abs(found - crop).mean() > 0.5
    return entry


def write_masking_bundle(folder: Path) -> Bundle:
    """Write a bundle whose mask is 0 at the edge of the crop and 1 in its middle, less where the target is dark."""
    side = 64
    rows, columns = np.mgrid[:side, :side]
    distance = np.hypot(rows - 31.5, columns - 31.5).astype(np.float32)
    ramp = np.clip((26.0 - distance) / 12.0, 0.0, 1.0)[None, None]
    constants: dict[str, NDArray[np.generic]] = {
        "ramp": ramp,
        "steepness": np.array(4.0, np.float32),
        "dark": np.array(0.45, np.float32),
        "zero": np.array(0.0, np.float32),
        "one": np.array(1.0, np.float32),
        "half": np.array(0.5, np.float32),
        "axis": np.array([1]),
        "last_axes": np.array([2, 3]),
    }
    nodes = [
        helper.make_node("Mul", ["target", "half"], ["output"]),
        helper.make_node("ReduceMean", ["target", "axis"], ["grey"], keepdims=1),
        helper.make_node("Sub", ["grey", "dark"], ["above"]),
        helper.make_node("Mul", ["above", "steepness"], ["steep"]),
        helper.make_node("Clip", ["steep", "zero", "one"], ["bright"]),
        helper.make_node("ReduceMax", ["source", "axis"], ["largest"], keepdims=1),
        helper.make_node("Mul", ["largest", "zero"], ["nothing"]),
        helper.make_node("Unsqueeze", ["nothing", "last_axes"], ["nothing_N111"]),
        helper.make_node("Add", ["bright", "nothing_N111"], ["whole"]),
        helper.make_node("Mul", ["whole", "ramp"], ["mask"]),
    ]
    picture: list[str | int] = ["N", 3, side, side]
    inputs: dict[str, list[str | int]] = {"source": ["N", 512], "target": picture}
    generator = serialise(nodes, constants, inputs, {"output": picture, "mask": ["N", 1, side, side]})
    return write_bundle(folder, {"generator.onnx": generator, "identity.onnx": build_identity()}, describe_tiny())


def draw_skin(size: int) -> NDArray[np.uint8]:
    """Draw a smooth gradient under fine noise, as pores are."""
    random = np.random.default_rng(11)
    smooth = np.linspace(110.0, 150.0, size)[:, None, None] + np.linspace(-15.0, 15.0, size)[None, :, None]
    return np.clip(smooth + random.normal(0.0, 12.0, (size, size, 3)), 0, 255).astype(np.uint8)


def measure_grid(difference: NDArray[np.floating], boost: int, where: NDArray[np.bool_]) -> float:
    """Return how much the interleaved pictures of pixel boost differ at one place, in levels (RMS)."""
    side = len(difference) // boost
    parts = difference.reshape(side, boost, side, boost, 3).std(axis=(1, 3))
    return float(np.sqrt((parts[where[::boost, ::boost]] ** 2).mean()))


def test_pixel_boost_keeps_the_surroundings_and_shows_no_grid_at_the_edge_of_the_mask(tmp_path: Path) -> None:
    bundle = write_masking_bundle(tmp_path / "bundle")
    written = write_facefusion(bundle, tmp_path / "there")
    table = json.loads(written.entry.read_text())
    # FaceFusion takes the first size by default.
    sizes = [int(size.partition("x")[0]) for size in table["pixel_boost"]]
    assert sizes == [512, 1024]
    face = np.random.default_rng(3).integers(0, 256, (112, 112, 3), dtype=np.uint8)
    for size in sizes:
        crop = draw_skin(size)
        found = swap_as_facefusion_does(written.model, table["entry"], face[..., ::-1], crop[..., ::-1])[..., ::-1]
        rows, columns = np.mgrid[:size, :size]
        distance = np.hypot(rows + 0.5 - size / 2, columns + 0.5 - size / 2) * 64 / size
        assert np.array_equal(np.rint(found[distance > 28]), crop[distance > 28])
        difference = found - paste_enlarged(bundle, face, crop)
        boost = size // table["entry"]["size"][0]
        assert measure_grid(difference, boost, (distance > 12) & (distance < 26)) < 0.5
        assert np.abs(found - crop)[distance < 12].mean() > 5


def test_an_exported_bundle_gives_the_same_crop_in_facefusion(tmp_path: Path) -> None:
    entry = check_same(write_tiny_bundle(tmp_path / "bundle"), tmp_path / "there")
    assert (entry["type"], entry["template"], entry["size"]) == ("blendswap", "arcface_128", [512, 512])
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["tiny.hash", "tiny.json", "tiny.onnx"]


def test_the_crop_is_a_multiple_of_the_generator_that_facefusion_lists() -> None:
    sizes = {side: choose_crop_size(side) for side in (64, 96, 100, 128, 192, 256, 384, 512, 1024, 2048)}
    assert sizes == {
        64: 512,
        96: 768,
        100: 600,
        128: 512,
        192: 768,
        256: 512,
        384: 768,
        512: 512,
        1024: 1024,
        2048: 2048,
    }


def test_the_steps_name_every_file_of_facefusion_to_edit_and_the_newline(tmp_path: Path) -> None:
    written = write_facefusion(write_tiny_bundle(tmp_path / "bundle"), tmp_path / "there")
    steps = json.loads(written.entry.read_text())["how"]
    for file, named in (
        ("types.py", "FaceSwapperModel"),
        ("core.py", "create_static_model_set"),
        ("choices.py", "face_swapper_set"),
    ):
        assert any(f"face_swapper/{file}" in step and named in step and "'tiny'" in step for step in steps)
    assert any("newline" in step and "deletes" in step for step in steps)
    assert any("'path': resolve_relative_path('../.assets/models/tiny.hash')" in step for step in steps)


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
