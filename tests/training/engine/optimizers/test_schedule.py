from __future__ import annotations

import math

import pytest
import torch

from fusionray.training.config import EngineConfig
from fusionray.training.engine.engine import Engine
from fusionray.training.schedule import ScheduleConfig, ema_decay, learning_rate, scale_lr
from tests.support.toy_recipe import ToyRecipe

WARM = ScheduleConfig(warmup_images=1000, warmup_factor=0.1, final_lr=1e-6)


def test_the_rate_grows_from_a_tenth_to_the_peak() -> None:
    assert learning_rate(WARM, 2e-4, 0, 10_000) == pytest.approx(2e-5)
    assert learning_rate(WARM, 2e-4, 500, 10_000) == pytest.approx(0.55 * 2e-4)
    assert learning_rate(WARM, 2e-4, 1000, 10_000) == pytest.approx(2e-4)


def test_the_rate_falls_as_a_cosine_to_the_final_rate_and_stays_there() -> None:
    assert learning_rate(WARM, 2e-4, 5500, 10_000) == pytest.approx(1e-6 + (2e-4 - 1e-6) / 2)
    quarter = 1e-6 + (2e-4 - 1e-6) * (1 + math.cos(math.pi / 4)) / 2
    assert learning_rate(WARM, 2e-4, 3250, 10_000) == pytest.approx(quarter)
    assert learning_rate(WARM, 2e-4, 10_000, 10_000) == pytest.approx(1e-6)
    assert learning_rate(WARM, 2e-4, 20_000, 10_000) == pytest.approx(1e-6)


def test_the_curve_is_the_same_for_every_batch_size() -> None:
    schedule = ScheduleConfig(warmup_images=1000, final_lr=0)
    for images in (0, 256, 1024, 5120, 9984):
        shares = {
            round(learning_rate(schedule, scale_lr(1e-4, batch), images, 10_000) / scale_lr(1e-4, batch), 12)
            for batch in (8, 32, 256)
        }
        assert len(shares) == 1


def test_the_rate_scales_with_the_batch() -> None:
    assert scale_lr(1e-4, 32) == pytest.approx(1e-4)
    assert scale_lr(1e-4, 128) == pytest.approx(4e-4)


def test_beyond_the_linear_range_the_rate_grows_with_the_square_root_of_the_batch() -> None:
    assert scale_lr(1e-4, 512) == pytest.approx(16e-4)
    assert scale_lr(1e-4, 2048) == pytest.approx(32e-4)
    assert scale_lr(1e-4, 512, linear_images=128) == pytest.approx(8e-4)


def test_the_engine_takes_the_linear_range_from_its_schedule() -> None:
    schedule = ScheduleConfig(linear_images=32)
    engine = Engine(
        ToyRecipe(), EngineConfig(global_batch=128, schedule=schedule), total_images=256, device=torch.device("cpu")
    )
    assert engine.set_learning_rates()["first"] == pytest.approx(0.1 * 2)


def test_without_warm_up_the_run_begins_at_the_peak() -> None:
    assert learning_rate(ScheduleConfig(), 1e-3, 0, 100) == pytest.approx(1e-3)


def test_a_warm_up_longer_than_the_run_is_no_fault() -> None:
    assert learning_rate(WARM, 1e-3, 999, 500) < 1e-3
    assert learning_rate(WARM, 1e-3, 1000, 500) == pytest.approx(1e-3)


def test_the_final_rate_never_exceeds_the_peak() -> None:
    assert learning_rate(ScheduleConfig(final_lr=1.0), 1e-3, 100, 100) == pytest.approx(1e-3)


def test_half_of_the_average_is_forgotten_in_a_half_life_whatever_the_batch() -> None:
    for batch in (8, 32, 128):
        decay = ema_decay(1024, batch, images_seen=10**9)
        assert decay ** (1024 / batch) == pytest.approx(0.5)


def test_the_average_follows_closely_at_the_start() -> None:
    assert ema_decay(10_000, 32, 32) < 1e-3 < ema_decay(10_000, 32, 10_000) < ema_decay(10_000, 32, 10**6)
    assert ema_decay(0, 32, 1000) == 0
