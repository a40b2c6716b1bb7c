from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from pydantic import ValidationError

from fusionray.bundle.bundle import Bundle, read_bundle
from fusionray.cli import main
from fusionray.errors import InputMissing, ParityFailed, ShardMismatch
from fusionray.export import variants
from fusionray.export.calibration_data import CalibrationData, draw_calibration_data
from fusionray.export.export import open_trained
from fusionray.export.quantize import list_border_layers
from fusionray.export.variants import Gate, Gates, build_variant
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.crop_fuser import CropFuser
from fusionray.runtime.engines.providers import CPU
from tests.support import tiny_world
from tests.support.tiny_fusion import SIZE
from tests.support.tiny_world import save_fusion, write_world

ON_CPU = RuntimeConfig(providers=(CPU,), threads=1)


def draw_for(run: Path, shards: str | None = None) -> CalibrationData:
    trained = open_trained(str(run))
    return draw_calibration_data(trained.bundle_export, trained.config.data, shards)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an untrained model, and its shards."""
    folder = tmp_path_factory.mktemp("variants")
    write_world(folder / "shards")
    save_fusion(folder / "run", shards=str(folder / "shards"))
    return folder


@pytest.fixture(scope="module")
def bundle(run: Path) -> Bundle:
    command = ["export", str(run / "run"), "--output", str(run / "bundle"), "--precision", "fp32,fp16,int8"]
    assert main(command) == 0
    return read_bundle(run / "bundle")


def test_variants_are_described_with_hashes_sizes_and_measurements(bundle: Bundle) -> None:
    variants = bundle.description.variants
    assert set(variants) == {"fp16", "int8"}
    for variant in variants.values():
        assert variant.file in bundle.description.files
        assert variant.bytes == (bundle.folder / variant.file).stat().st_size
        assert 0 < variant.largest_difference <= variant.tolerance
        assert (variant.crops, variant.measured_on) == (16, "held-out crops of its shards")
    assert variants["fp16"].largest_difference < variants["int8"].largest_difference
    assert variants["fp16"].psnr_decibels > variants["int8"].psnr_decibels > 30
    assert variants["int8"].ssim >= 0.98
    assert variants["fp16"].bytes < bundle.generator_path.stat().st_size


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_variant_has_the_ports_of_the_generator_at_any_batch(bundle: Bundle, precision: str) -> None:
    crops = np.random.default_rng(0).integers(0, 256, (3, SIZE, SIZE, 3), dtype=np.uint8)
    sources = np.full((3, 512), 512**-0.5, np.float32)
    plain, narrow = (CropFuser(bundle, ON_CPU, precision=name) for name in ("fp32", precision))  # type: ignore[arg-type]
    ports = (*narrow.engine.inputs.values(), *narrow.engine.outputs.values())
    assert {port.dtype for port in ports} == {"tensor(float)"}
    wanted, found = plain.fuse(sources, crops), narrow.fuse(sources, crops)
    target = np.zeros((3, 3, SIZE, SIZE), np.float32)
    assert not np.array_equal(*(fuser.forward(sources, target)["output"] for fuser in (plain, narrow)))
    assert np.abs(found.crops.astype(int) - wanted.crops).mean() < 3
    alone = narrow.fuse(sources[:1], crops[:1])
    assert np.abs(alone.crops[0].astype(int) - found.crops[0]).max() <= 1


def test_measurements_are_of_the_held_out_crops(run: Path, bundle: Bundle) -> None:
    held_out = draw_for(run / "run").held_out
    wanted, found = (
        CropFuser(bundle, ON_CPU, precision=name).forward(held_out["source"], held_out["target"])  # type: ignore[arg-type]
        for name in ("fp32", "int8")
    )
    picture, mask = np.abs(found["output"] - wanted["output"]) / 2, np.abs(found["mask"] - wanted["mask"])
    stated = bundle.description.variants["int8"]
    assert stated.mean_difference == pytest.approx(picture.mean(), rel=0.02)
    assert stated.largest_difference == pytest.approx(max(picture.max(), mask.max()), rel=0.05)
    squared = (picture.astype(np.float64) ** 2).mean(axis=(1, 2, 3))
    assert stated.psnr_decibels == pytest.approx(np.minimum(-10 * np.log10(squared), 58.9).mean(), abs=0.2)


def test_weights_are_stored_in_the_named_precision(bundle: Bundle) -> None:
    def count_kinds(name: str) -> dict[int, int]:
        kinds: dict[int, int] = {}
        for tensor in onnx.load(bundle.folder / name).graph.initializer:
            kinds[tensor.data_type] = kinds.get(tensor.data_type, 0) + int(np.prod(tensor.dims))
        return kinds

    half, eight = count_kinds("generator.fp16.onnx"), count_kinds("generator.int8.onnx")
    assert half[onnx.TensorProto.FLOAT16] > 0.9 * sum(half.values())
    assert eight[onnx.TensorProto.INT8] > 0.5 * sum(eight.values())


def test_layers_next_to_pixels_stay_in_float32(bundle: Bundle) -> None:
    borders = list_border_layers(onnx.load(bundle.generator_path), ("source", "target"))
    assert len(borders) >= 2
    convolutions = {node.name: node for node in onnx.load(bundle.folder / "generator.int8.onnx").graph.node}
    scaled = {output for node in convolutions.values() if node.op_type == "DequantizeLinear" for output in node.output}
    assert all(node.input[1] not in scaled for name, node in convolutions.items() if name in borders)
    inner = [n for n in convolutions.values() if n.op_type == "Conv" and n.name not in borders]
    assert inner
    assert all(node.input[1] in scaled for node in inner)


@pytest.mark.parametrize("gate", [Gate(tolerance=1e-6, ssim=0.9), Gate(tolerance=0.5, ssim=1.0)])
def test_a_variant_that_misses_its_gate_is_not_written_and_the_error_has_its_measurements(
    run: Path, bundle: Bundle, tmp_path: Path, gate: Gate
) -> None:
    calibration_data = draw_for(run / "run")
    with pytest.raises(ParityFailed, match=r"int8 generator misses its gate: largest difference .* SSIM .*gates\.int8"):
        build_variant("int8", bundle.generator_path, tmp_path, calibration_data, gate)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["output", "mask"])
def test_a_variant_with_nan_passes_no_gate(
    run: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    data = draw_for(run / "run")
    compute = variants.compute
    expected = compute(bundle.folder / "generator.onnx", data)

    def compute_broken(model: Path, calibration_data: CalibrationData) -> dict[str, np.ndarray]:
        found = compute(model, calibration_data)
        found[name][0, 0, 3, 3] = np.nan
        return found

    gate = Gate(tolerance=1.0, ssim=0.0)
    path = bundle.folder / "generator.onnx"
    assert variants.passes(variants.measure(path, expected, data, gate, ()), gate)
    monkeypatch.setattr(variants, "compute", compute_broken)
    assert not variants.passes(variants.measure(path, expected, data, gate, ()), gate)


def test_one_limit_of_a_gate_can_be_set_alone() -> None:
    gates = Gates.model_validate({"fp16": {"tolerance": 0.2}})
    assert gates.fp16 == Gate(tolerance=0.2, ssim=Gates().fp16.ssim)
    assert gates.int8 == Gates().int8
    with pytest.raises(ValidationError):
        Gates.model_validate({"fp16": {"similarity": 1.0}})


def test_an_export_with_a_variant_that_misses_its_gate_writes_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(run / "run"), "--output", str(tmp_path / "bundle"), "--precision", "fp16"]
    assert main([*command, "gates.fp16.tolerance=1e-9"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_calibration_data_comes_from_the_shards_or_is_synthetic(run: Path, tmp_path: Path) -> None:
    save_fusion(tmp_path / "run")
    lost = tmp_path / "run"
    calibration_data = draw_for(lost)
    assert calibration_data.measured_on == "synthetic faces"
    assert calibration_data.held_out["target"].std() > 0.1
    assert not np.array_equal(calibration_data.held_out["target"], calibration_data.calibration["target"])
    found, again = draw_for(lost, str(run / "shards")), draw_for(run / "run")
    assert np.array_equal(found.held_out["target"], again.held_out["target"])
    with pytest.raises(InputMissing):
        draw_for(lost, str(tmp_path / "nowhere"))
    write_world(tmp_path / "large", size=64, pictures=1)
    with pytest.raises(ShardMismatch, match="holds crops of 64 px"):
        draw_for(lost, str(tmp_path / "large"))


def test_shards_without_held_out_crops_are_refused(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_world, "PEOPLE", {"train": 2, "test": 2})
    write_world(tmp_path / "shards", pictures=1)
    with pytest.raises(ShardMismatch, match="its validation split is empty"):
        draw_for(run / "run", str(tmp_path / "shards"))
