from __future__ import annotations

from pathlib import Path

import onnxruntime as ort
import pytest

from fusionray.config import validate
from fusionray.errors import BundleInvalid, ConfigInvalid, ProviderUnavailable
from fusionray.hardware.device import count_cpus, has_nvidia_device
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.factory import open_engine
from fusionray.runtime.engines.providers import CPU, CUDA
from fusionray.runtime.engines.session import choose_providers
from tests.support.tiny_bundle import build_identity

without_gpu = pytest.mark.skipif(has_nvidia_device(), reason="this machine has a GPU: CUDA would not be refused")


def on(*providers: str) -> RuntimeConfig:
    return RuntimeConfig(providers=providers)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "identity.onnx"
    path.write_bytes(build_identity())
    return path


def test_auto_chooses_providers_of_this_machine(model: Path) -> None:
    report = open_engine(model).report
    assert report.provider == choose_providers()[0]
    assert report.threads == count_cpus()
    assert report.library == f"onnxruntime {ort.__version__}"


def test_omp_num_threads_does_not_set_the_threads(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert open_engine(model, on(CPU)).report.threads == count_cpus()
    assert open_engine(model, RuntimeConfig(providers=(CPU,), threads=3)).report.threads == 3


def test_a_provider_that_does_not_exist_is_refused_by_name(model: Path) -> None:
    with pytest.raises(ProviderUnavailable, match=r"AbacusExecutionProvider: this build of ONNX Runtime has .*CPU"):
        open_engine(model, on("AbacusExecutionProvider", CPU))


@without_gpu
@pytest.mark.skipif(CUDA not in ort.get_available_providers(), reason="this build of ONNX Runtime knows no CUDA")
def test_a_provider_that_silently_fell_to_the_cpu_is_refused(model: Path) -> None:
    with pytest.raises(ProviderUnavailable, match="CUDAExecutionProvider: it could not start"):
        open_engine(model, on(CUDA, CPU))


@without_gpu
@pytest.mark.skipif(CUDA not in ort.get_available_providers(), reason="this build of ONNX Runtime knows no CUDA")
def test_a_gpu_with_a_broken_driver_is_an_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusionray.hardware.device.has_nvidia_device", lambda: True)
    assert choose_providers() == (CUDA, CPU)
    with pytest.raises(ProviderUnavailable, match="CUDAExecutionProvider: it could not start"):
        open_engine(model)


@without_gpu
def test_falling_back_is_possible_and_warns(model: Path) -> None:
    with pytest.warns(RuntimeWarning, match="CUDAExecutionProvider.*continuing without") as caught:
        engine = open_engine(model, RuntimeConfig(providers=(CUDA, CPU), allow_fallback=True))
    assert len(caught) == 1
    assert engine.report.provider == CPU


@pytest.mark.parametrize("providers", [[], "CPUExecutionProvider"])
def test_providers_that_are_no_list_are_refused(providers: object) -> None:
    with pytest.raises(ConfigInvalid, match="providers"):
        validate(RuntimeConfig, {"providers": providers}, "here")


def test_a_file_that_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    with pytest.raises(BundleInvalid, match=r"broken\.onnx: ONNX Runtime cannot load it"):
        open_engine(tmp_path / "broken.onnx")
    with pytest.raises(BundleInvalid, match="no such model"):
        open_engine(tmp_path / "absent.onnx")
