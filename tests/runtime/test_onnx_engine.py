from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fusionray.config import validate
from fusionray.errors import ConfigInvalid, ProviderUnavailable
from fusionray.hardware.device import has_nvidia_device
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.engine import InferenceEngine, ModelFile
from fusionray.runtime.engines.engine_cache import ENTRY_NAME
from fusionray.runtime.engines.factory import open_engine
from fusionray.runtime.engines.onnx_engine import GRAPH_NAME, OnnxEngine
from fusionray.runtime.engines.providers import CPU, TENSORRT
from tests.support.child_python import run_python
from tests.support.tiny_bundle import build_identity

PICTURES = np.random.default_rng(0).uniform(-1, 1, (3, 3, 112, 112)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "identity.onnx"
    path.write_bytes(build_identity())
    return path


def on_cpu(**settings: object) -> RuntimeConfig:
    return RuntimeConfig(providers=(CPU,), threads=1, **settings)  # type: ignore[arg-type]


def embed(engine: InferenceEngine) -> np.ndarray:
    return engine.run(["source"], {"input": PICTURES})[0]


def test_an_optimised_graph_from_the_cache_computes_the_same(model: Path, tmp_path: Path) -> None:
    plain = open_engine(model, on_cpu())
    settings = on_cpu(cache=str(tmp_path / "cache"))
    built, found = open_engine(model, settings), open_engine(model, settings)
    assert [engine.report.cache for engine in (plain, built, found)] == ["off", "built", "found"]
    assert np.array_equal(embed(plain), embed(built))
    assert np.array_equal(embed(plain), embed(found))
    assert found.inputs == plain.inputs
    assert found.outputs == plain.outputs


def test_another_model_under_the_same_name_has_an_entry_of_its_own(model: Path, tmp_path: Path) -> None:
    settings = on_cpu(cache=str(tmp_path / "cache"))
    former = embed(open_engine(model, settings))
    model.write_bytes(build_identity(seed=1))
    engine = open_engine(model, settings)
    assert engine.report.cache == "built"
    assert not np.allclose(embed(engine), former, atol=1e-2)


def test_options_are_part_of_the_key_and_threads_are_not(model: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    assert open_engine(model, on_cpu(cache=cache)).report.cache == "built"
    threads = open_engine(model, RuntimeConfig(providers=(CPU,), threads=2, cache=cache))
    assert (threads.report.cache, threads.report.threads) == ("found", 2)
    options = {CPU: {"use_arena": False}}
    assert open_engine(model, on_cpu(cache=cache, provider_options=options)).report.cache == "built"


def test_a_damaged_graph_is_not_loaded(model: Path, tmp_path: Path) -> None:
    settings = on_cpu(cache=str(tmp_path / "cache"))
    wanted = embed(open_engine(model, settings))
    # A sound model, but not the one that was stored: only its hash tells.
    (graph,) = (tmp_path / "cache").glob(f"*/{GRAPH_NAME}")
    graph.write_bytes(build_identity(seed=1))
    engine = open_engine(model, settings)
    assert engine.report.cache == "built"
    assert np.array_equal(embed(engine), wanted)
    assert len(list((tmp_path / "cache").glob(f"*/{ENTRY_NAME}"))) == 1


def test_io_binding_computes_the_same_as_a_plain_run(model: Path) -> None:
    engine = OnnxEngine(ModelFile(model, ""), on_cpu())
    turned = PICTURES.transpose(0, 1, 3, 2)
    (plain,) = engine.run(["source"], {"input": turned})
    (bound,) = engine.run_bound(["source"], {"input": turned}, "cpu")
    assert np.array_equal(plain, bound)


def test_a_precision_that_onnx_runtime_lacks_raises_or_warns(model: Path) -> None:
    with pytest.raises(ProviderUnavailable, match="not in bf16"):
        open_engine(model, on_cpu(precision="bf16"))
    with pytest.warns(RuntimeWarning, match="continuing in fp32") as caught:
        engine = open_engine(model, on_cpu(precision="bf16", allow_fallback=True))
    assert len(caught) == 1
    assert engine.report.precision == "fp32"


@pytest.mark.skipif(has_nvidia_device(), reason="this machine has a GPU: TensorRT might start")
def test_tensorrt_that_cannot_start_leaves_nothing_in_the_cache(model: Path, tmp_path: Path) -> None:
    wanted = {"providers": (TENSORRT, CPU), "cache": str(tmp_path / "cache")}
    with pytest.raises(ProviderUnavailable, match=TENSORRT):
        open_engine(model, RuntimeConfig(**wanted))
    with pytest.warns(RuntimeWarning, match=f"{TENSORRT}.*continuing without"):
        engine = open_engine(model, RuntimeConfig(**wanted, allow_fallback=True))
    assert (engine.report.provider, engine.report.precision, engine.report.cache) == (CPU, "fp32", "off")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_full_disk_does_not_stop_a_replica(model: Path, tmp_path: Path, engine: str) -> None:
    code = (
        "import warnings\n"
        "import numpy as np\n"
        "from fusionray.runtime.engines.factory import open_engine\n"
        "from fusionray.runtime.config import RuntimeConfig\n"
        "from tests.support.full_disk import full_disk\n"
        f"settings = RuntimeConfig(engine={engine!r}, threads=1, cache={str(tmp_path / 'cache')!r})\n"
        "with full_disk(4096), warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        f"    engine = open_engine({str(model)!r}, settings)\n"
        "    engine.run(['source'], {'input': np.zeros((1, 3, 112, 112), np.float32)})\n"
        "print(engine.report.cache, len(caught))\n"
    )
    assert run_python("-c", code, CUDA_VISIBLE_DEVICES="").strip() == "off 1"
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"batches": [0]},
        {"workspace_gib": 5},
        {"engine": "openvino", "providers": [CPU]},
        {"precision": "int8"},
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigInvalid):
        validate(RuntimeConfig, wrong, "here")
