from __future__ import annotations

from pathlib import Path

import pytest

from fusionray.bundle.bundle import bundle_hash
from fusionray.runtime.crop_fuser import CropFuser
from fusionray.runtime.engines.engine import EngineReport
from fusionray.serving.config import ModelConfig, ServeConfig
from fusionray.serving.config_sections.stages import GeneratorStageConfig
from fusionray.serving.model_cards import ModelVersion
from fusionray.serving.pipeline.execution_streams import ExecutionStreams, plan_streams
from fusionray.serving.pipeline.loaded_models import LoadedGenerator
from tests.support.tiny_bundle import write_tiny_bundle


def report(provider: str, threads: int) -> EngineReport:
    return EngineReport(provider, (provider,), threads, "onnxruntime")


@pytest.mark.parametrize(
    ("threads", "streams"),
    [
        (1, ExecutionStreams(1, 1, is_shared=True)),
        (2, ExecutionStreams(2, 1, 1, is_shared=True)),
        (3, ExecutionStreams(3, 1, 1, is_shared=True)),
        (16, ExecutionStreams(4, 1, 4, is_shared=True)),
    ],
)
def test_streams_on_a_cpu_share_its_threads(threads: int, streams: ExecutionStreams) -> None:
    assert plan_streams(GeneratorStageConfig(), report("CPUExecutionProvider", threads)) == streams


def test_a_gpu_computes_one_batch_at_a_time() -> None:
    assert plan_streams(GeneratorStageConfig(), report("CUDAExecutionProvider", 1)) == ExecutionStreams(1, 8)


def test_settings_override_the_plan() -> None:
    settings = GeneratorStageConfig(num_streams=1, max_batch=3)
    assert plan_streams(settings, report("CPUExecutionProvider", 2)) == ExecutionStreams(1, 3)
    assert plan_streams(settings, report("TensorrtExecutionProvider", 1)) == ExecutionStreams(1, 3)


def test_the_generator_warms_up_with_the_batch_size_that_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    version = ModelVersion("tiny", str(bundle.folder), bundle_hash(bundle))
    config = ServeConfig(models=(ModelConfig(bundle=str(bundle.folder)),), fuser=GeneratorStageConfig(max_batch=12))
    warmed: list[int] = []
    warm_up = CropFuser.warm_up

    def record(fuser: CropFuser) -> None:
        warmed.append(fuser.max_batch)
        warm_up(fuser)

    monkeypatch.setattr(CropFuser, "warm_up", record)
    generator = LoadedGenerator(version, config)
    generator.batcher.close()
    assert set(warmed) == {12}
