"""What two processes of a gloo group do together; run in children, so it lies apart from the tests."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from fusionray.data import synthetic
from fusionray.recipes.identity import IdentityRecipe, IdentityRecipeConfig
from fusionray.training.build import face_view
from fusionray.training.engine import Engine
from fusionray.training.schedule import ScheduleConfig
from fusionray.training.settings import EngineConfig
from fusionray.types import FaceBatch
from tests.tiny_fusion import ENCODER, build_pairs, build_recipe
from tests.toy_recipe import ToyRecipe, draw_numbers, split

NUM_RANKS = 2
NUM_STEPS = 3
CPU = torch.device("cpu")
SETTINGS = {"precision": "fp32", "clip_norm": 1e6, "average_half_life_images": 64.0}


def build_engine(*, accumulate: int, global_batch: int = 16, **changes: Any) -> Engine:
    settings = {**SETTINGS, "schedule": ScheduleConfig(warmup_images=32), **changes}
    config = EngineConfig(global_batch=global_batch, accumulate=accumulate, **settings)
    return Engine(ToyRecipe(), config, total_images=160, device=CPU)


def parameters(engine: Engine) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{key}": value.clone()
        for name, network in engine.networks.items()
        for key, value in network.state_dict().items()
    }


def spawn(folder: Path) -> list[dict[str, Any]]:
    """Run the group and return what each rank saw."""
    mp.spawn(run_rank, args=(str(folder),), nprocs=NUM_RANKS)  # type: ignore[no-untyped-call]
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(NUM_RANKS)]


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=NUM_RANKS,
        timeout=timedelta(seconds=60),
    )
    try:
        seen = {
            "toy": train_toy(rank),
            "bad": train_with_a_bad_rank(rank),
            "fusion": train_fusion(rank),
            "identity": train_identity(rank),
        }
        torch.save(seen, f"{folder}/rank-{rank}.pt")
    finally:
        dist.destroy_process_group()


def train_toy(rank: int) -> dict[str, Any]:
    """2 ranks x 2 micro-batches x 4 rows: together the 16 rows that one process takes at once."""
    engine = build_engine(accumulate=2)
    rates, losses = [], []
    for step in range(NUM_STEPS):
        quarters = split(draw_numbers(16, seed=step), 4)
        report = engine.step(quarters[2 * rank : 2 * rank + 2])
        rates.append(report.learning_rates["first"])
        losses.append(report.losses["first"])
    return {"parameters": parameters(engine), "rates": rates, "losses": losses}


def train_with_a_bad_rank(rank: int) -> dict[str, Any]:
    """Only rank 1 meets a damaged row: both must leave the step out, or they part for ever."""
    engine = build_engine(accumulate=1)
    before = parameters(engine)
    batch = draw_numbers(8, seed=rank)
    if rank == 1:
        batch.first[0] = torch.nan
    report = engine.step([batch])
    return {"before": before, "after": parameters(engine), "skipped": list(report.skipped)}


def train_fusion(rank: int) -> dict[str, Any]:
    """Every loss of the real recipe, the gradient penalty due in each step, other pairs on each rank."""
    config = EngineConfig(global_batch=8, accumulate=2, precision="fp32", average_half_life_images=8)
    engine = Engine(build_recipe(), config, total_images=64, device=CPU)
    before = parameters(engine)
    wrappers = {name: isinstance(network, DistributedDataParallel) for name, network in engine.wrapped.items()}
    reports = []
    for step in range(2):
        pairs = [build_pairs(2, seed=100 * rank + 10 * step + micro) for micro in range(2)]
        report = engine.step(pairs)
        reports.append({"losses": report.losses, "norms": report.grad_norms, "rates": report.learning_rates})
    return {
        "before": before,
        "parameters": parameters(engine),
        "averages": engine.state_dict()["averages"]["generator"],
        "wrappers": wrappers,
        "reports": reports,
    }


def train_identity(rank: int) -> dict[str, Any]:
    """Margin head and traits head on one encoder, other faces on each rank."""
    torch.manual_seed(0)
    recipe = IdentityRecipe(
        IdentityRecipeConfig(encoder=ENCODER, traits_weight=2.0),
        num_people=8,
        face_view_23=face_view("arcface_128"),
        synthetic_faces=True,
    )
    config = EngineConfig(global_batch=8, precision="fp32")
    engine = Engine(recipe, config, total_images=64, device=CPU)
    before = parameters(engine)
    images = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(rank))
    people = synthetic.sample_identities(8, seed=2)[4 * rank : 4 * rank + 4]
    report = engine.step([FaceBatch(images, torch.arange(4 * rank, 4 * rank + 4), people)])
    return {
        "before": before,
        "parameters": parameters(engine),
        "averages": engine.state_dict()["averages"]["classifier"],
        "losses": report.losses,
    }
