"""What some steps of a mid-sized recipe really take, and what is estimated; run as a child, whose memory is its own."""

from __future__ import annotations

import json

import torch

from fusionray.hardware.memory import resident_bytes, status_bytes
from fusionray.nets.identity import IdentityEncoder
from fusionray.recipes.arcface_crop import crop_to_arcface_affine
from fusionray.recipes.face_fusion.recipe import FaceFusionRecipe
from fusionray.recipes.face_fusion.settings import FaceFusionConfig
from fusionray.training.config import EngineConfig, ParallelConfig
from fusionray.training.dry_run.footprint import measure_step
from fusionray.training.dry_run.memory_estimate import estimate_memory
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.precision import Precision
from fusionray.types import PairBatch
from tests.support.tiny_fusion import ENCODER

CPU = torch.device("cpu")
IMAGES = 24


def main() -> None:
    torch.set_num_threads(1)
    torch.nn.Conv2d(3, 8, 3)(torch.randn(1, 3, 32, 32)).sum().backward()  # libraries are loaded now, not later
    before = resident_bytes()
    recipe = FaceFusionRecipe(
        FaceFusionConfig(),
        identity_encoder=IdentityEncoder(ENCODER).eval(),
        face_view_23=crop_to_arcface_affine("arcface_128"),
    )
    footprint = measure_step(recipe, draw(1), Precision("fp32", CPU))
    estimate = estimate_memory(
        footprint,
        batch_size=IMAGES,
        local_batch_images=IMAGES,
        strategy="ddp",
        num_ranks=1,
        parallel=ParallelConfig(),
    )
    config = EngineConfig(global_batch=IMAGES, precision="fp32", compile=False)
    engine = Engine(recipe, config, total_images=1000, device=CPU)
    for _ in range(2):
        engine.step(draw(IMAGES))
    print(json.dumps({"estimated": estimate.total, "measured": status_bytes("VmHWM") - before}))


def draw(count: int) -> PairBatch:
    pictures = [torch.randint(0, 256, (count, 3, 64, 64), dtype=torch.uint8) for _ in range(2)]
    return PairBatch(pictures[0], pictures[1], torch.arange(count) < 1)


if __name__ == "__main__":
    main()
