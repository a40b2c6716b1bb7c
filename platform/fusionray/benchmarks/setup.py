"""What is measured: the recipe of a preset with an untrained encoder, its engine, and batches in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import torch
from pydantic import Field
from torch import Tensor

from fusionray.config import Section, merge_trees, read_preset, validate
from fusionray.data import synthetic
from fusionray.errors import ConfigInvalid
from fusionray.recipes.recipe import Losses, PhaseInput, Recipe
from fusionray.recipes.registry import build_recipe
from fusionray.training.config import TrainConfig
from fusionray.training.dry_run.dry_run import build_dependencies
from fusionray.training.engine.engine import Engine
from fusionray.types import PairBatch, SyntheticTruth

NO_SHARDS = "none"
# Batches that contestants go through in turn: caches see other pictures in each step, as in a run.
NUM_BATCHES = 4


class FusionRecipe(Recipe[PairBatch], Protocol):
    """What the plain loops call of a face fusion beside the contract of every recipe."""

    def generator_loss(self, step: PhaseInput[Any]) -> Losses:
        """Everything that is asked of the generator."""

    def augment(self, *pictures: Tensor) -> tuple[Tensor, ...]:
        """Change pictures alike before the discriminator judges them."""


class TrainBenchConfig(Section):
    """What `fusionray bench train` measures and how long it takes its time."""

    output: str = Field(description="folder for figures.json, report.md, train.png, and the shards that are streamed")
    engine_preset: str = Field("tiny-64", description="preset whose engine is measured; a face fusion")
    recompute_preset: str = Field("fast-128", description="preset whose activations are recomputed")
    gpu_preset: str = Field("fast-128", description="preset that the GPU computes")
    train: dict[str, Any] = Field(
        {}, description="changes of the presets, by their own names: train.engine.precision=; all step by adamw"
    )
    keys: tuple[str, ...] = Field((), description="keys to measure; none: all")
    rounds: int = Field(5, ge=1, description="rounds that contestants take turns in; medians are reported")
    steps: int = Field(4, ge=1, description="steps of a contestant in a round")
    loop_steps: int | None = Field(
        None,
        ge=1,
        description="steps in a round of the Ray Train loop; default: from one entry in the tracker to the next",
    )
    loader_batches: int = Field(60, ge=1, description="batches of 64 that each loader makes in a round")
    seconds: float = Field(600, gt=0, description="no round and no part begins after this time")
    data_size: int = Field(128, ge=32, description="side of the crops that are streamed; the preset's networks at it")
    world: str = Field("synthetic://people=60,images=20", description="what the shards are prepared from")
    scaling_batch: int = Field(32, ge=2, multiple_of=2, description="global batch of one worker and of two")
    recompute_images: int = Field(2, ge=1, description="images of a step whose activations are recomputed")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="what the engine is measured on; scaling: a CPU")


@dataclass(frozen=True)
class BenchSetup:
    """A face-fusion run as far as it can be had without shards and without Ray; plain data, travels to processes."""

    config: TrainConfig
    device: torch.device

    def build_recipe(self) -> FusionRecipe:
        """Build the recipe; twice built, the networks are equal."""
        torch.manual_seed(self.config.run.seed)
        # Encoders that a run would train first are as fast and as large untrained.
        dependencies, _ = build_dependencies(self.config)
        recipe = build_recipe(self.config, self.config.state_facts(num_people=2, synthetic=False), dependencies)
        return cast(FusionRecipe, recipe)

    def build_engine(self, **changes: Any) -> Engine:
        """Build an engine, `changes` being settings of `engine`."""
        settings = self.config.engine.model_copy(update=changes)
        return Engine(
            self.build_recipe(),
            settings,
            total_images=self.config.budget.images,
            device=self.device,
            seed=self.config.run.seed,
        )

    def draw_batches(self, images: int, count: int = NUM_BATCHES) -> list[PairBatch]:
        """Render batches of synthetic pairs, uint8 on the CPU, page-locked where a GPU is fed from them."""
        ratio = self.config.data.same_identity_ratio
        batches = [draw_pairs(images, self.config.data.size, ratio, seed) for seed in range(count)]
        return [batch.pin() for batch in batches] if self.device.type == "cuda" else batches


def build_setup(bench: TrainBenchConfig, preset: str, device: torch.device, **changes: Any) -> BenchSetup:
    """Build what a preset says, with the benchmark's changes, then those of a part (sections by name).

    Raises: ConfigInvalid, also for a preset that is no face fusion.
    """
    tree = merge_trees({"data": {"shards": NO_SHARDS}}, read_preset(preset))
    tree = merge_trees(merge_trees(tree, bench.train), changes)
    config = validate(TrainConfig, tree, f"preset {preset} with the changes under `train`")
    if config.recipe.name != "face_fusion":
        raise ConfigInvalid(f"preset {preset}: is no face fusion; choose another one to be measured")
    # The plain loops that it is measured against know AdamW.
    plain = {
        name: getattr(config.recipe, name).model_copy(update={"kind": "adamw"})
        for name in ("generator_optimizer", "discriminator_optimizer")
    }
    recipe = config.recipe.model_copy(update=plain)
    return BenchSetup(config.model_copy(update={"recipe": recipe}), device)


def draw_pairs(images: int, size: int, same_identity_ratio: float, seed: int) -> PairBatch:
    """Render pairs of synthetic people with what their true fusion is made of; the first rows show one person twice."""
    same_N = torch.arange(images) < round(images * same_identity_ratio)
    sources, targets = synthetic.sample_identities(2 * images, seed).chunk(2)
    targets = torch.where(same_N[:, None], sources, targets)
    looks, attributes = synthetic.sample_attributes(2 * images, seed).chunk(2)
    # The middle half of the picture: about where an aligned crop lies.
    view_N23 = torch.tensor([[0.5, 0.0, 0.25], [0.0, 0.5, 0.25]]).repeat(images, 1, 1)
    source, target = (
        (synthetic.render(people, how, size, view_N23).clamp(0, 1) * 255).round().to(torch.uint8)
        for people, how in ((sources, looks), (targets, attributes))
    )
    return PairBatch(source, target, same_N, SyntheticTruth(sources, attributes, view_N23))
