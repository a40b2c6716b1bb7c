from __future__ import annotations

import pytest
import torch

from fusionray.metrics.baselines import build_baselines
from fusionray.nets.pixels import to_float
from tests.support.tiny_fusion import SIZE, build_pairs


def test_each_baseline_is_what_its_name_says() -> None:
    pairs = build_pairs(3)
    source, target = to_float(pairs.source), to_float(pairs.target)
    baselines = build_baselines(source, target)
    assert list(baselines) == ["target", "paste", "average"]
    assert torch.equal(baselines["target"], target)
    torch.testing.assert_close(baselines["average"], (source + target) / 2)
    middle, corner = SIZE // 2, (..., slice(0, 2), slice(0, 2))
    torch.testing.assert_close(baselines["paste"][..., middle, middle], source[..., middle, middle], atol=1e-3, rtol=0)
    torch.testing.assert_close(baselines["paste"][corner], target[corner], atol=0.02, rtol=0)
    assert (source - target)[corner].abs().max() > 0.1


def test_baselines_of_equal_pictures_are_that_picture() -> None:
    target = to_float(build_pairs(2).target)
    for baseline in build_baselines(target, target).values():
        assert torch.equal(baseline, target)


def test_crops_of_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[1, 3, 8, 8\].*\[1, 3, 16, 16\]"):
        build_baselines(torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 16, 16))
