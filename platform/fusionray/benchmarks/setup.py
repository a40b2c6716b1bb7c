"""The measured setup: the recipe of a preset with an untrained encoder, its engine, and batches in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, cast

import torch
from pydantic import Field
from torch import Tensor

from fusionray.config import Section, in_unit, merge_trees, read_preset, validate
from fusionray.data import synthetic
from fusionray.errors import ConfigInvalid
from fusionray.recipes.recipe import Losses, PhaseInput, Recipe
from fusionray.recipes.registry import build_recipe
from fusionray.training.config import TrainConfig
from fusionray.training.dry_run.dry_run import build_dependencies
from fusionray.training.engine.engine import Engine
from fusionray.types import PairBatch, SyntheticTruth

NO_SHARDS = "none"
# Batches that candidates cycle through, so that caches see new pictures in each step, as in a run.
NUM_BATCHES = 4


class FusionRecipe(Recipe[PairBatch], Protocol):
    """The methods of a face fusion that the plain loops call, besides those of every recipe."""

    def generator_loss(self, step: PhaseInput[Any]) -> Losses:
        """Compute the losses of the generator."""

    def augment(self, *pictures: Tensor) -> tuple[Tensor, ...]:
        """Apply the same augmentation to pictures before the discriminator sees them."""


class TrainBenchConfig(Section):
    """Settings of `fusionray bench train`: what it measures, and for how long."""

    listed_by: ClassVar[str] = "fusionray bench train --settings"

    output: str = Field(description="Folder for figures.json, report.html, report.md, and the shards.")
    engine_preset: str = Field("tiny-64", description="Face-fusion preset whose engine is measured.")
    recompute_preset: str = Field("fast-128", description="Preset that activation checkpointing is measured on.")
    gpu_preset: str = Field("fast-128", description="Preset that the GPU is measured on.")
    train: dict[str, Any] = Field(
        {},
        description="Changes of the presets: train.KEY=VALUE, with the keys of `fusionray train --settings`. Every "
        "candidate steps with adamw, but those of the scaling measurement as their preset says.",
    )
    keys: tuple[str, ...] = Field((), description="Keys of the table to measure; empty: all of them.")
    rounds: int = Field(5, ge=1, description="Rounds of interleaved measurement; medians are reported.")
    steps: int = Field(4, ge=1, description="Steps of each candidate in a round.")
    loop_steps: int | None = Field(
        None,
        ge=1,
        description="Steps of the Ray Train loop in a round; null: those between two entries in the tracker.",
    )
    loader_batches: int = Field(60, ge=1, description="Batches of 64 images that each loader yields in a round.")
    seconds: float = Field(600, gt=0, description="No round and no part starts after this time.")
    data_size: int = Field(128, ge=32, description="Side of the streamed crops; the preset's networks take it as well.")
    world: str = Field(
        "synthetic://people=60,images=20", description="Synthetic dataset that the shards are prepared from."
    )
    scaling_batch: int = Field(
        32,
        ge=2,
        multiple_of=2,
        description="Global batch of the scaling measurement, with one worker and with two.",
        json_schema_extra=in_unit("images"),
    )
    recompute_images: int = Field(2, ge=1, description="Images per step of the activation-checkpointing measurement.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Device that the engine is measured on; scaling is always measured on CPUs."
    )


class DataBenchConfig(TrainBenchConfig):
    """Settings of `fusionray bench data`: the keys of `bench train` that are about data."""

    listed_by: ClassVar[str] = "fusionray bench data --settings"

    keys: tuple[str, ...] = Field(
        ("data_wait_share", "loader_vs_pillow", "loader_vs_best", "loader_object_storage"),
        description="Keys of the table of `bench train` to measure.",
    )


@dataclass(frozen=True)
class BenchSetup:
    """A face-fusion run without shards and without Ray; plain data, which can be sent to processes."""

    config: TrainConfig
    device: torch.device

    def build_recipe(self) -> FusionRecipe:
        """Build the recipe; each call gives equal networks."""
        torch.manual_seed(self.config.run.seed)
        # A run would train some encoders first; untrained ones have the same speed and size.
        dependencies, _ = build_dependencies(self.config)
        recipe = build_recipe(self.config, self.config.dataset_info(num_people=2, synthetic=False), dependencies)
        return cast(FusionRecipe, recipe)

    def build_engine(self, **changes: Any) -> Engine:
        """Build an engine; `changes` are settings of `engine`."""
        settings = self.config.engine.model_copy(update=changes)
        return Engine(
            self.build_recipe(),
            settings,
            total_images=self.config.budget.images,
            device=self.device,
            seed=self.config.run.seed,
        )

    def draw_batches(self, images: int, count: int = NUM_BATCHES) -> list[PairBatch]:
        """Render batches of synthetic pairs, uint8 on the CPU, page-locked if the device is a GPU."""
        ratio = self.config.data.same_identity_ratio
        batches = [draw_pairs(images, self.config.data.size, ratio, seed) for seed in range(count)]
        return [batch.pin() for batch in batches] if self.device.type == "cuda" else batches


def build_setup(
    bench: TrainBenchConfig, preset: str, device: torch.device, *, own_optimizers: bool = False, **changes: Any
) -> BenchSetup:
    """Build the setup of a preset, changed by the benchmark's settings, then by those of a part (sections by name).

    `own_optimizers`: those of the preset, where no plain loop is compared with; otherwise adamw.

    Raises: ConfigInvalid, also for a preset that is not a face fusion.
    """
    tree = merge_trees({"data": {"shards": NO_SHARDS}}, read_preset(preset))
    tree = merge_trees(merge_trees(tree, bench.train), changes)
    config = validate(TrainConfig, tree, f"preset {preset} with the changes under `train`")
    if config.recipe.name != "face_fusion":
        raise ConfigInvalid(f"preset {preset}: is not a face fusion; choose another preset to measure")
    if own_optimizers:
        return BenchSetup(config, device)
    # The plain loops to compare with only have AdamW.
    plain = {
        name: getattr(config.recipe, name).model_copy(update={"kind": "adamw"})
        for name in ("generator_optimizer", "discriminator_optimizer")
    }
    recipe = config.recipe.model_copy(update=plain)
    return BenchSetup(config.model_copy(update={"recipe": recipe}), device)


def draw_pairs(images: int, size: int, same_identity_ratio: float, seed: int) -> PairBatch:
    """Render pairs of synthetic people with the parameters of their true fusion; the first rows show one person."""
    same_N = torch.arange(images) < round(images * same_identity_ratio)
    sources, targets = synthetic.sample_identities(2 * images, seed).chunk(2)
    targets = torch.where(same_N[:, None], sources, targets)
    looks, attributes = synthetic.sample_attributes(2 * images, seed).chunk(2)
    # The middle half of the picture, about the area of an aligned crop.
    view_N23 = torch.tensor([[0.5, 0.0, 0.25], [0.0, 0.5, 0.25]]).repeat(images, 1, 1)
    source, target = (
        (synthetic.render(people, how, size, view_N23).clamp(0, 1) * 255).round().to(torch.uint8)
        for people, how in ((sources, looks), (targets, attributes))
    )
    return PairBatch(source, target, same_N, SyntheticTruth(sources, targets, attributes, view_N23))
