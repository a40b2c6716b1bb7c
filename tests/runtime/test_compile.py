from __future__ import annotations

from pathlib import Path

import pytest

from fusionray.cli import main
from fusionray.hardware.device import has_nvidia_device
from fusionray.runtime.compile import compile_bundle
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.crop_fuser import CropFuser
from tests.support.tiny_bundle import write_tiny_bundle

without_gpu = pytest.mark.skipif(has_nvidia_device(), reason="with a GPU other engines would be built")
FILES = ["identity.onnx", "generator.onnx"]


@without_gpu
def test_the_fuser_finds_engines_that_were_compiled_ahead(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    settings = RuntimeConfig(cache=str(tmp_path / "cache"), threads=1)
    first, again = compile_bundle(bundle, settings), compile_bundle(bundle, settings)
    assert [(one.file, one.report.cache) for one in first] == [(name, "built") for name in FILES]
    assert [(one.file, one.report.cache) for one in again] == [(name, "found") for name in FILES]
    assert CropFuser(bundle, settings).report.cache == "found"


def test_compile_refuses_an_unsupported_precision_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_bundle(tmp_path / "bundle")
    line = ["compile", str(tmp_path / "bundle"), "--cache", str(tmp_path / "cache"), "--precision", "bf16"]
    assert main([*line, "engine=onnxruntime", "providers=[CPUExecutionProvider]"]) == 1
    assert "CPUExecutionProvider computes a model of fp32 weights in fp32, not in bf16" in capsys.readouterr().err
