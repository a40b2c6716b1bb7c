from __future__ import annotations

from typing import Any

import pytest

from fusionray.training.config import TrainConfig
from fusionray.training.timing.report import OTHER, PARTS, StepTimes


def build_config(**changes: Any) -> TrainConfig:
    tree = {"data": {"shards": "x"}, "recipe": {"name": "identity"}, **changes}
    return TrainConfig.model_validate(tree)


def summarise(**seconds: float) -> StepTimes:
    overlapped = {"communication": seconds.pop("overlapped")} if "overlapped" in seconds else {}
    parts = {**dict.fromkeys((*PARTS, OTHER), 0.0), **seconds}
    return StepTimes(1, sum(parts.values()), parts, overlapped, 1.0, 0.0)


@pytest.mark.parametrize(
    ("parallel", "advice", "absent"),
    [
        ({}, "compression=fp16", "powersgd"),
        ({"compression": "fp16"}, "compression=powersgd", "=fp16"),
        ({"compression": "fp16", "strategy": "fsdp"}, "raise engine.global_batch (now 32)", "powersgd"),
        ({"compression": "powersgd"}, "raise engine.global_batch (now 32)", "compression"),
    ],
)
def test_the_remedy_for_communication_is_one_that_is_not_yet_taken(
    parallel: dict[str, str], advice: str, absent: str
) -> None:
    warning = summarise(forward=0.6, communication=0.4).warning(build_config(engine={"parallel": parallel}))
    assert warning is not None
    assert warning.startswith("40% of a step is spent on the exchange of gradients")
    assert advice in warning
    assert absent not in warning


def test_hidden_communication_warns_as_well() -> None:
    assert summarise(backward=1.0, overlapped=0.31).warning(build_config()) is not None


def test_waiting_for_data_names_the_settings_that_feed_a_worker() -> None:
    warning = summarise(forward=0.85, data_wait=0.15).warning(build_config())
    assert warning is not None
    assert "15% of a step is spent waiting for data: raise data.decode_threads (now by hardware profile)" in warning


def test_a_healthy_step_warns_of_nothing() -> None:
    assert summarise(forward=0.62, communication=0.29, data_wait=0.09).warning(build_config()) is None
