from __future__ import annotations

import pytest

from fusionray.runtime.engine import EngineReport
from serve.fuser_stage import Lanes, plan_lanes
from serve.settings import FuserSettings


def report(provider: str, threads: int) -> EngineReport:
    return EngineReport(provider, (provider,), threads, "onnxruntime")


@pytest.mark.parametrize(
    ("threads", "lanes"), [(1, Lanes(1, 1)), (2, Lanes(2, 1, 1)), (3, Lanes(3, 1, 1)), (16, Lanes(4, 1, 4))]
)
def test_lanes_on_a_cpu_share_its_threads(threads: int, lanes: Lanes) -> None:
    assert plan_lanes(FuserSettings(), report("CPUExecutionProvider", threads)) == lanes


def test_a_gpu_computes_one_batch_at_a_time() -> None:
    assert plan_lanes(FuserSettings(), report("CUDAExecutionProvider", 1)) == Lanes(1, 8)


def test_settings_win() -> None:
    settings = FuserSettings(lanes=1, max_batch=3)
    assert plan_lanes(settings, report("CPUExecutionProvider", 2)) == Lanes(1, 3)
    assert plan_lanes(settings, report("TensorrtExecutionProvider", 1)) == Lanes(1, 3)
