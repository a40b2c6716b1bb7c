from __future__ import annotations

import pytest

from fusionray.runtime.engine import EngineReport
from fusionray.serving.config import GeneratorStageConfig
from fusionray.serving.pipeline.generator_stage import ExecutionStreams, plan_streams


def report(provider: str, threads: int) -> EngineReport:
    return EngineReport(provider, (provider,), threads, "onnxruntime")


@pytest.mark.parametrize(
    ("threads", "streams"),
    [
        (1, ExecutionStreams(1, 1)),
        (2, ExecutionStreams(2, 1, 1)),
        (3, ExecutionStreams(3, 1, 1)),
        (16, ExecutionStreams(4, 1, 4)),
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
