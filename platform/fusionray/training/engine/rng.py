"""Seeds that follow from the position of a run alone, so that repeated computations draw the same numbers."""

from __future__ import annotations

import torch


def seed_part(seed: int, images_seen: int, rank: int, part: str) -> None:
    """Seed torch's global generator for a part of a step: its preparation, or a phase by its name."""
    torch.manual_seed(mix_seed(seed, images_seen, rank, sum(part.encode())))


def mix_seed(seed: int, images_seen: int, rank: int, part: int) -> int:
    """Derive an independent 63-bit seed for a position of the run, a rank, a part of the step."""
    mixed = (seed * 0x9E3779B97F4A7C15 + images_seen * 0xBF58476D1CE4E5B9 + rank * 0x94D049BB133111EB + 1) % 2**64
    mixed = (mixed + part * 0xD1B54A32D192ED03) % 2**64
    mixed ^= mixed >> 31
    return (mixed * 0xD6E8FEB86659FD93 % 2**64) >> 1
