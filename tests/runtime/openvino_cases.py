from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fusionray.cli import main
from fusionray.errors import BundleInvalid
from fusionray.hardware.device import has_nvidia_device
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.engine import InferenceEngine
from fusionray.runtime.engines.factory import open_engine
from fusionray.runtime.engines.openvino_engine import OPENVINO, load_openvino
from tests.support.child_python import run_python
from tests.support.tiny_bundle import build_identity, write_tiny_bundle

RANDOM = np.random.default_rng(0)
PICTURES = RANDOM.uniform(-1, 1, (5, 3, 112, 112)).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "identity.onnx"
    path.write_bytes(build_identity())
    return path


def embed(engine: InferenceEngine, pictures: np.ndarray = PICTURES) -> np.ndarray:
    return engine.run(["source"], {"input": pictures})[0]


def openvino(**settings: object) -> RuntimeConfig:
    return RuntimeConfig(engine="openvino", threads=1, **settings)  # type: ignore[arg-type]


def multiplies_bf16() -> bool:
    return "BF16" in load_openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


needs_bf16 = pytest.mark.skipif(not multiplies_bf16(), reason="this CPU multiplies no bf16")


def test_openvino_computes_the_same_as_onnx_runtime(model: Path) -> None:
    onnx, engine = open_engine(model, RuntimeConfig(threads=1)), open_engine(model, openvino())
    for rows in (1, 3, 5):
        assert np.abs(embed(onnx, PICTURES[:rows]) - embed(engine, PICTURES[:rows])).max() < 1e-5
    assert engine.inputs == onnx.inputs
    assert {name: port.shape for name, port in engine.outputs.items()} == {"source": ("N", 512)}
    assert (engine.report.provider, engine.report.precision, engine.report.threads) == (OPENVINO, "fp32", 1)


@needs_bf16
@pytest.mark.skipif(has_nvidia_device(), reason="with a GPU, precision is that of TensorRT")
def test_openvino_computes_in_bf16_only_on_request(model: Path) -> None:
    assert open_engine(model).report.provider != OPENVINO
    engine = open_engine(model, RuntimeConfig(precision="bf16", threads=1))
    assert (engine.report.provider, engine.report.precision) == (OPENVINO, "bf16")
    difference = np.abs(embed(engine) - embed(open_engine(model, openvino()))).max()
    # Eight bits of mantissa: seen, but small.
    assert 1e-5 < difference < 1e-2


def test_a_model_compiled_for_a_batch_size_computes_the_same(model: Path) -> None:
    engine = open_engine(model, openvino(batches=(1, 3)))
    for rows in (1, 2, 3):
        assert np.abs(embed(engine, PICTURES[:rows]) - embed(engine)[:rows]).max() < 1e-5


def test_concurrent_threads_get_their_own_results(model: Path) -> None:
    engine = open_engine(model, openvino())
    rows = [RANDOM.uniform(-1, 1, (1 + index % 3, 3, 112, 112)).astype(np.float32) for index in range(60)]
    wanted = [embed(engine, row) for row in rows]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda row: embed(engine, row), rows))
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(wanted, found, strict=True))
    # Kept by their owner: the next call does not write into them.
    first = embed(engine, rows[0])
    copy = first.copy()
    embed(engine, -rows[0])
    assert np.array_equal(first, copy)


def test_non_contiguous_inputs_are_supported(model: Path) -> None:
    engine = open_engine(model, openvino())
    turned = PICTURES.transpose(0, 1, 3, 2)
    assert np.array_equal(embed(engine, turned), embed(engine, np.ascontiguousarray(turned)))


def test_a_cached_model_computes_the_same(model: Path, tmp_path: Path) -> None:
    settings = openvino(cache=str(tmp_path), batches=(2,))
    built, found = open_engine(model, settings), open_engine(model, settings)
    assert [engine.report.cache for engine in (built, found)] == ["built", "found"]
    for rows in (1, 2):
        assert np.array_equal(embed(built, PICTURES[:rows]), embed(found, PICTURES[:rows]))
    threads = open_engine(model, RuntimeConfig(engine="openvino", threads=2, cache=str(tmp_path), batches=(2,)))
    assert (threads.report.cache, threads.report.threads) == ("found", 2)
    assert open_engine(model, openvino(cache=str(tmp_path))).report.cache == "built"


def test_replicas_that_start_together_build_once(model: Path, tmp_path: Path) -> None:
    code = (
        "from fusionray.runtime.engines.factory import open_engine\n"
        "from fusionray.runtime.config import RuntimeConfig\n"
        f"settings = RuntimeConfig(engine='openvino', threads=1, cache={str(tmp_path)!r})\n"
        f"print(open_engine({str(model)!r}, settings).report.cache)\n"
    )
    with ThreadPoolExecutor(3) as pool:
        said = list(pool.map(lambda _: run_python("-c", code).strip(), range(3)))
    assert sorted(said) == ["built", "found", "found"]


@needs_bf16
def test_each_precision_has_its_own_entry(model: Path, tmp_path: Path) -> None:
    for precision in ("fp32", "bf16"):
        report = open_engine(model, openvino(cache=str(tmp_path), precision=precision)).report
        assert (report.cache, report.precision) == ("built", precision)


def test_a_file_that_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    with pytest.raises(BundleInvalid, match=r"broken\.onnx: OpenVINO cannot load it"):
        open_engine(tmp_path / "broken.onnx", openvino())


def test_importing_openvino_opens_no_socket_and_writes_no_file(model: Path, tmp_path: Path) -> None:
    code = (
        "import json, sys, threading\n"
        "seen = []\n"
        "sys.addaudithook(lambda event, _: seen.append(event) if event.startswith('socket.') else None)\n"
        "import numpy as np\n"
        "from fusionray.runtime.engines.factory import open_engine\n"
        "from fusionray.runtime.config import RuntimeConfig\n"
        f"engine = open_engine({str(model)!r}, RuntimeConfig(engine='openvino', threads=1))\n"
        "engine.run(['source'], {'input': np.zeros((1, 3, 112, 112), np.float32)})\n"
        "for thread in threading.enumerate():\n"
        "    thread is threading.current_thread() or thread.join(5)\n"
        "print(json.dumps([seen, engine.report.provider]))\n"
    )
    # Telemetry is silent where it believes to be in a continuous integration: it must not believe so here.
    said = run_python("-c", code, HOME=str(tmp_path), CI="", TF_BUILD="", JENKINS_URL="")
    assert json.loads(said) == [[], OPENVINO]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(has_nvidia_device(), reason="with a GPU other engines would be built")
def test_compile_prints_which_engines_were_built_or_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_bundle(tmp_path / "bundle")
    line = ["compile", str(tmp_path / "bundle"), "--cache", str(tmp_path / "cache"), "--batches", "1,2"]
    line += ["--precision", "fp32", "engine=openvino", "threads=1"]
    for status in ("built", "loaded from the cache"):
        assert main(line) == 0
        said = capsys.readouterr()
        lines = said.out.splitlines()
        assert [text.split(" in ")[0] for text in lines] == [
            f"{name}: {status}" for name in ("identity.onnx", "generator.onnx")
        ]
        assert all("(OpenVINO, fp32, openvino " in text for text in lines)
        assert "2/2" in said.err
    blobs = sorted(path.name for path in (tmp_path / "cache").glob("*/*.blob"))
    assert blobs == sorted(["0.blob", "1.blob", "2.blob"] * 2)
