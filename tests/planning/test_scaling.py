from __future__ import annotations

import numpy as np
import pytest

from fusionray.errors import ConfigInvalid
from fusionray.planning.config import NetworkConfig
from fusionray.planning.scaling import StepModel, exchange_seconds, expected_maximum, fit_model, predict_step

NETWORK = NetworkConfig(
    node_gbytes_per_second=100, between_nodes_gbits_per_second=80, latency_microseconds=0, overlap=0.0
)
MODEL = StepModel(0.01, 0.001, 0.0, exchanged_bytes=1e9, messages=2)


def test_a_ring_sends_twice_the_bytes_less_a_share_through_its_slowest_link() -> None:
    assert exchange_seconds(NETWORK, 1, 8, 1e9, 2) == 0
    # Inside a node: 2 * 7/8 GB at 100 GB/s.
    assert exchange_seconds(NETWORK, 8, 8, 1e9, 2) == pytest.approx(0.0175)
    # Four nodes: 2 * 3/4 GB at 10 GB/s, which takes longer than inside.
    assert exchange_seconds(NETWORK, 32, 8, 1e9, 2) == pytest.approx(0.15)
    assert exchange_seconds(NETWORK.model_copy(update={"between_nodes_gbits_per_second": 1e6}), 32, 8, 1e9, 2) == (
        pytest.approx(0.0175)
    )


def test_latency_counts_for_each_message_up_and_down_a_tree() -> None:
    slow = NETWORK.model_copy(update={"latency_microseconds": 100.0})
    assert exchange_seconds(slow, 64, 8, 0.0, 2) == pytest.approx(2 * 12 * 100e-6)


def test_one_run_scales_with_its_batch_and_two_tell_the_fixed_part() -> None:
    sizes = {"spread": 0.0, "exchanged_bytes": 0.0, "messages": 1}
    alone = fit_model((32,), (0.042,), **sizes)  # type: ignore[arg-type]
    assert alone.compute_seconds(16) == pytest.approx(0.021)
    both = fit_model((16, 32), (0.026, 0.042), **sizes)  # type: ignore[arg-type]
    assert both.fixed_seconds == pytest.approx(0.010)
    assert both.compute_seconds(4) == pytest.approx(0.014)


def test_noise_makes_no_part_negative() -> None:
    sizes = {"spread": 0.0, "exchanged_bytes": 0.0, "messages": 1}
    # The half took less than half, and then more than the whole.
    assert fit_model((16, 32), (0.020, 0.042), **sizes).fixed_seconds == pytest.approx(0.0)  # type: ignore[arg-type]
    falling = fit_model((16, 32), (0.050, 0.042), **sizes)  # type: ignore[arg-type]
    assert (falling.image_seconds, falling.fixed_seconds) == (0.0, pytest.approx(0.042))


def test_two_runs_of_one_batch_are_refused() -> None:
    with pytest.raises(ConfigInvalid, match=r"second_run.*engine\.global_batch=16"):
        fit_model((32, 32), (0.04, 0.05), spread=0.0, exchanged_bytes=0.0, messages=1)


def test_the_slowest_of_many_is_as_late_as_drawn_ones_are() -> None:
    random = np.random.default_rng(0)
    for count in (2, 8, 64, 512):
        drawn = random.normal(size=(20_000, count)).max(axis=1).mean()
        assert expected_maximum(count) == pytest.approx(drawn, rel=0.04)
    assert expected_maximum(1) == 0


def test_a_step_is_work_waiting_and_what_the_exchange_does_not_hide() -> None:
    noisy = StepModel(0.01, 0.001, 0.05, exchanged_bytes=1e9, messages=2)
    step = predict_step(noisy, NETWORK.model_copy(update={"overlap": 0.5}), 8, 8, 32)
    assert step.compute_seconds == pytest.approx(0.042)
    assert step.waiting_seconds == pytest.approx(0.042 * 0.05 * expected_maximum(8))
    assert step.exchange_seconds == pytest.approx(0.0175 / 2)
    assert step.images_per_second == pytest.approx(8 * 32 / step.seconds)
    assert step.exchange_share == pytest.approx(step.exchange_seconds / step.seconds)


def test_fewer_images_on_each_worker_make_the_exchange_a_larger_share() -> None:
    shares = [predict_step(MODEL, NETWORK, 32, 8, images).exchange_share for images in (64, 16, 4)]
    assert shares == sorted(shares)
