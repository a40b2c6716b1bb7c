"""The training benchmark at its smallest: networks of a few channels, one or two steps a round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fusionray.benchmarks.setup import BenchSetup, TrainBenchConfig, build_setup
from tests.support.tiny_fusion import SIZE, save_encoder


def build_bench(folder: Path, **changes: Any) -> TrainBenchConfig:
    """Describe a benchmark into `folder`, which also holds its encoder."""
    encoder = folder / "encoder"
    if not encoder.exists():
        save_encoder(encoder)
    train = {
        "data": {"size": SIZE},
        "recipe": {
            "generator": {
                "size": SIZE,
                "channels": [8, 16],
                "bottleneck_blocks": 1,
                "style_length": 16,
                "source": None,
            },
            "discriminator": {"channels": [4, 8], "scales": 2},
            "identity_encoder": str(encoder),
            "gradient_penalty_interval": 2,
        },
        "engine": {"global_batch": 4},
    }
    settings: dict[str, Any] = {
        "output": str(folder / "out"),
        "recompute_preset": "tiny-64",
        "train": train,
        "rounds": 2,
        "steps": 1,
        "loop_steps": 2,
        "loader_batches": 2,
        "data_size": SIZE,
        "world": "synthetic://people=8,images=4",
        "scaling_batch": 4,
        "device": "cpu",
    }
    return TrainBenchConfig(**{**settings, **changes})


def build_tiny_setup(folder: Path, **changes: Any) -> BenchSetup:
    """Build the setup of the benchmark above."""
    return build_setup(build_bench(folder), "tiny-64", torch.device("cpu"), **changes)
