from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fusionray.benchmarks.findings import load_keys
from fusionray.benchmarks.video.config import PARTS, VideoBenchConfig
from fusionray.benchmarks.video.run import MEASURES, bench_video
from fusionray.benchmarks.video.steadiness import compare_warp_errors, count_reverted
from tests.support.tiny_bundle import write_tiny_bundle


def test_each_part_has_keys_and_a_measure() -> None:
    assert set(MEASURES) == set(PARTS) == {key.part for key in load_keys("video").values()}


def test_frames_that_show_the_original_are_counted() -> None:
    random = np.random.default_rng(0)
    before = [random.integers(0, 255, (40, 40, 3), np.uint8) for _ in range(10)]
    after = [255 - frame for frame in before]
    after[3], after[7] = before[3], before[7] ^ 1
    points = np.tile(np.array([[10, 10], [30, 10], [20, 20], [12, 30], [28, 30]], np.float32), (10, 1, 1))
    assert count_reverted(before, after, points) == (2, 10)


def moving_clip(picture: NDArray[np.float32], steps: float) -> torch.Tensor:
    """A clip [T,3,H,W] of a picture that moves to the right."""
    frames = [cv2.warpAffine(picture, np.float32([[1, 0, steps * number], [0, 1, 0]]), (96, 96)) for number in range(8)]
    return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)


def test_a_fused_film_may_move_like_its_target_but_not_shake() -> None:
    random = np.random.default_rng(0)
    pictures = random.uniform(-1, 1, (2, 96, 96, 3)).astype(np.float32)
    true_face, other_face = (4 * cv2.GaussianBlur(picture, (0, 0), 4) for picture in pictures)
    # The target moves otherwise than the true fusion, as a head of another outline does.
    target, true = moving_clip(other_face, steps=1.5), moving_clip(true_face, steps=0.7)
    steady = moving_clip(0.5 * other_face + 0.5 * true_face, steps=1.5)
    assert compare_warp_errors(steady, target, true) < 1.5
    shaken = torch.stack([frame.roll(number % 2, dims=2) for number, frame in enumerate(steady)])
    assert compare_warp_errors(shaken, target, true) > 3
    noise = torch.from_numpy(random.normal(0, 6 / 127.5, steady.shape).astype(np.float32))
    assert compare_warp_errors(steady + noise, target, true) > 3


@pytest.mark.slow(seconds=60)
@pytest.mark.filterwarnings("ignore:outputs are signed with a generated TEST KEY:RuntimeWarning")
def test_every_key_is_measured_on_a_small_film(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "tiny").folder
    config = VideoBenchConfig(
        output=str(tmp_path / "bench"),
        bundle=str(bundle),
        width=320,
        height=240,
        frames=100,
        long_repeats=3,
        rounds=1,
    )
    result = bench_video(config)
    assert result.figures.not_measured == {}
    assert set(result.figures.figures) == {*load_keys("video"), *load_keys("machine")}
    assert result.figures.figures["follow_recall"].value == 1
    assert result.figures.figures["reverted_frames_per_1000"].value == 0
    assert (tmp_path / "bench" / "report.html").exists()
