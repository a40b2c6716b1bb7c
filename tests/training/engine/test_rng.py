from __future__ import annotations

import torch

from fusionray.training.engine.rng import mix_seed, seed_part


def draw(*place: int, part: str = "generator") -> float:
    seed_part(*place, part)
    return float(torch.rand(()))


def test_seeds_differ_by_run_position_rank_and_part() -> None:
    seeds = {mix_seed(seed, images, rank, 0) for seed in range(5) for images in range(0, 640, 32) for rank in range(8)}
    assert len(seeds) == 5 * 20 * 8
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert len({mix_seed(0, 0, 0, part) for part in range(100)}) == 100


def test_the_same_place_draws_the_same_whatever_was_drawn_before() -> None:
    first = draw(3, 640, 1)
    torch.rand(7)
    assert draw(3, 640, 1) == first
    others = [draw(4, 640, 1), draw(3, 672, 1), draw(3, 640, 0), draw(3, 640, 1, part="discriminator")]
    assert first not in others
    assert len(set(others)) == len(others)
