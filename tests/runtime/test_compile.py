from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from fusionray.bundle.bundle import Bundle, write_bundle
from fusionray.bundle.description import EmbeddingRule, Variant
from fusionray.cli import main
from fusionray.errors import BundleInvalid
from fusionray.hardware.device import has_nvidia_device
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.crop_fuser import CropFuser
from fusionray.runtime.engines.compile import compile_bundle
from fusionray.runtime.source_encoding import EmbeddingSourceEncoder, open_source_encoder
from tests.support.tiny_bundle import build_generator, build_identity, describe_tiny, serialise, write_tiny_bundle

without_gpu = pytest.mark.skipif(has_nvidia_device(), reason="with a GPU other engines would be built")
FILES = ["identity.onnx", "generator.onnx"]


def write_bundle_with_variant_and_converter(folder: Path) -> Bundle:
    # The engine takes the precision of the weights from the variant, so a float32 model can stand in for a float16 one.
    generator = build_generator()
    scale = serialise(
        [helper.make_node("Mul", ["input", "one"], ["output"])],
        {"one": np.array(1.0, np.float32)},
        {"input": ["N", 512]},
        {"output": ["N", 512]},
    )
    variant = Variant(
        file="generator.fp16.onnx",
        bytes=len(generator),
        tolerance=0.01,
        largest_difference=0.0,
        mean_difference=0.0,
        psnr_decibels=58.9,
        ssim=1.0,
        crops=1,
        measured_on="nothing",
    )
    changes = {"variants": {"fp16": variant}, "embedding": EmbeddingRule(converter="converter.onnx")}
    models = {"generator.onnx": generator, "identity.onnx": build_identity(), variant.file: generator}
    return write_bundle(folder, {**models, "converter.onnx": scale}, describe_tiny().model_copy(update=changes))


@without_gpu
def test_the_fuser_finds_engines_that_were_compiled_ahead(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    settings = RuntimeConfig(cache=str(tmp_path / "cache"), threads=1)
    first, again = compile_bundle(bundle, settings), compile_bundle(bundle, settings)
    assert [(one.file, one.report.cache) for one in first] == [(name, "built") for name in FILES]
    assert [(one.file, one.report.cache) for one in again] == [(name, "found") for name in FILES]
    assert CropFuser(bundle, settings).report.cache == "found"


@without_gpu
def test_serving_finds_variants_and_converter_that_were_compiled_ahead(tmp_path: Path) -> None:
    bundle = write_bundle_with_variant_and_converter(tmp_path / "bundle")
    settings = RuntimeConfig(cache=str(tmp_path / "cache"), threads=1)
    compiled = compile_bundle(bundle, settings, variants=("fp16",))
    files = ["identity.onnx", "converter.onnx", "generator.onnx", "generator.fp16.onnx"]
    assert [(one.file, one.report.cache) for one in compiled] == [(name, "built") for name in files]
    encoder = open_source_encoder(bundle, settings)
    assert isinstance(encoder, EmbeddingSourceEncoder)
    assert encoder.converter is not None
    assert encoder.converter.report.cache == encoder.engine.report.cache == "found"
    assert CropFuser(bundle, settings, precision="fp32").report.cache == "found"
    half = CropFuser(bundle, settings, precision="fp16").report
    assert (half.cache, half.precision) == ("found", "fp16")


def test_a_variant_that_the_bundle_lacks_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    settings = RuntimeConfig(cache=str(tmp_path / "cache"), threads=1)
    with pytest.raises(BundleInvalid, match=r"has no int8 generator \(it has fp32\)"):
        compile_bundle(bundle, settings, variants=("int8",))
    assert not (tmp_path / "cache").exists()


def test_compile_refuses_an_unsupported_precision_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_bundle(tmp_path / "bundle")
    line = ["compile", str(tmp_path / "bundle"), "--cache", str(tmp_path / "cache"), "--precision", "bf16"]
    assert main([*line, "engine=onnxruntime", "providers=[CPUExecutionProvider]"]) == 1
    assert "CPUExecutionProvider computes a model of fp32 weights in fp32, not in bf16" in capsys.readouterr().err
