"""The dry run: sizes and costs of a run, and one real step, on this machine, without a cluster and without data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from fusionray.checkpoint.info import find_checkpoint
from fusionray.config import merge_trees, parse_overrides, read_preset, read_yaml, validate
from fusionray.data.shards import check_shards, read_manifest
from fusionray.environment import resolve_location
from fusionray.errors import ConfigInvalid, TrainingFailed
from fusionray.hardware.profiles import HardwareProfile, describe_profile, detect_profile
from fusionray.recipes.family import RecipeFamily
from fusionray.recipes.recipe import Recipe
from fusionray.recipes.registry import build_recipe, parse_recipe
from fusionray.storage import filesystem as storage
from fusionray.training.config import PRESET_PREFIX, SYNTHETIC_PREFIX, TrainConfig
from fusionray.training.dry_run.footprint import Footprint, measure_step
from fusionray.training.dry_run.operation_tracker import count_flops
from fusionray.training.dry_run.plan import MemoryPlan, make_plan
from fusionray.training.dry_run.report import describe_networks, describe_plan, describe_rates, describe_step
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.memory import is_out_of_memory
from fusionray.training.engine.precision import Precision
from fusionray.types import Batch

NO_SHARDS = "none"
# Without shards the number of people is unknown; the margin head is built for this many.
ASSUMED_PEOPLE = 1000


@dataclass(frozen=True)
class DryRun:
    """The result: footprint, plan, and losses and seconds of the real step."""

    footprint: Footprint
    plan: MemoryPlan
    losses: dict[str, float]
    step_seconds: float


def load_dry_config(file: str | None, overrides: Sequence[str], preset: str | None) -> TrainConfig:
    """Load the configuration as `load_config` does, but allow `data.shards` to be missing.

    Raises: ConfigInvalid.
    """
    from_file = read_yaml(Path(file)) if file is not None else {}
    from_overrides = parse_overrides(overrides)
    named = from_overrides.pop("preset", None) or preset or from_file.pop("preset", None)
    from_file.pop("preset", None)
    tree: dict[str, Any] = {"data": {"shards": NO_SHARDS}}
    for part in (read_preset(str(named)) if named else {}, from_file, from_overrides):
        tree = merge_trees(tree, part)
    return validate(TrainConfig, tree, file or (f"preset {named}" if named else "the command line"))


def dry_run(config: TrainConfig, log_line: Callable[[str], None] = print) -> DryRun:
    """Resolve, measure, estimate, and take one step with every phase due; `log_line` receives each result at once.

    Raises: ConfigInvalid, ShardMismatch, CheckpointMissing, as the run itself would; TrainingFailed if a step of the
    fewest images does not fit into this machine.
    """
    check_data(config)
    log_line(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, width=120))
    device = choose_device(config)
    profile = detect_profile(device)
    log_line(describe_profile(resolve_profile(profile, config), device))
    recipe, notes = build_dry_recipe(config)
    for note in notes:
        log_line(note)
    for network in (*recipe.networks.values(), *recipe.frozen.values(), *recipe.adaptive.values()):
        network.to(device)
    family = config.family
    few = family.fewest_images
    precision = Precision(resolve_profile(profile, config).precision, device)
    try:
        batch = family.draw_batch(config, few)
        footprint = measure_step(
            recipe, batch.to(device), precision, activation_checkpointing=config.engine.activation_checkpointing
        )
        for line in describe_networks(footprint, count_inference(*family.trace_inference(recipe))):
            log_line(line)
        plan = make_plan(config, footprint, device)
        for line in describe_plan(config, plan):
            log_line(line)
        log_line(describe_rates(recipe.optimizers, plan.global_batch))
        losses, seconds = take_step(config, recipe, batch, profile, device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingFailed(
            f"a step of {few} image(s) does not fit into the memory of this machine; set "
            "engine.activation_checkpointing=true, use a smaller preset, or run this on the machine that will train"
        ) from None
    log_line(describe_step(losses, seconds, few))
    return DryRun(footprint, plan, losses, seconds)


def resolve_profile(profile: HardwareProfile, config: TrainConfig) -> HardwareProfile:
    """Override a hardware profile with the settings that are not `auto`."""
    engine = config.engine
    chosen = {"precision": engine.precision, "channels_last": engine.channels_last, "compile": engine.compile}
    return profile.model_copy(update={name: value for name, value in chosen.items() if value != "auto"})


def check_data(config: TrainConfig) -> None:
    """Check the shards as the run would, if they exist."""
    if has_shards(config):
        data = config.data
        check_shards(
            data.shards,
            read_manifest(data.shards),
            size=data.size,
            task=config.family.task,
            template=data.template,
            with_parameters=config.family.needs_parameters(config.recipe),
        )


def has_shards(config: TrainConfig) -> bool:
    """Return whether the shards exist; the run would prepare `synthetic://...` first."""
    shards = config.data.shards
    if shards == NO_SHARDS or shards.startswith(SYNTHETIC_PREFIX):
        return False
    return storage.exists(storage.join(resolve_location(shards), "manifest.json"))


def choose_device(config: TrainConfig) -> torch.device:
    """Return the device that the run would use, on this machine.

    Raises: ConfigInvalid if `workers.device` is cuda and there is no GPU.
    """
    wanted = config.workers.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigInvalid(
            "workers.device=cuda: this machine has no GPU that torch can use; try the dry run on a node"
        )
    return torch.device("cuda", 0) if wanted != "cpu" and torch.cuda.is_available() else torch.device("cpu")


def build_dry_recipe(config: TrainConfig) -> tuple[Recipe[Any], list[str]]:
    """Build the recipe, with untrained dependencies where the run would train them first; return notes as well."""
    num_people, is_synthetic = ASSUMED_PEOPLE, config.data.shards.startswith(SYNTHETIC_PREFIX)
    notes = []
    if has_shards(config):
        manifest = read_manifest(config.data.shards)
        num_people, is_synthetic = manifest.splits["train"].identities, manifest.synthetic
    elif config.family.counts_people:
        notes.append(f"no shards yet: the margin head is built for {ASSUMED_PEOPLE} people")
    dependencies, more = build_dependencies(config)
    facts = config.state_facts(num_people=num_people, synthetic=is_synthetic)
    return build_recipe(config, facts, dependencies), notes + more


def build_dependencies(config: TrainConfig) -> tuple[dict[str, Any], list[str]]:
    """Load the networks that a recipe depends on, or build untrained ones for presets; return a note about each.

    Raises: CheckpointMissing, ConfigInvalid.
    """
    family = config.family
    built: dict[str, Any] = {}
    notes = []
    for key, place in family.dependencies(config).items():
        if place.startswith(PRESET_PREFIX):
            built[key] = build_untrained(family, key, place.removeprefix(PRESET_PREFIX))
            notes.append(f"{key}={place}: untrained here; the run trains it first")
        else:
            built[key] = family.load_dependency(key, find_checkpoint(resolve_location(place)))
            notes.append(f"{key}={place}: found")
    return built, notes


def build_untrained(family: RecipeFamily[Any], key: str, preset: str) -> Any:
    """Build the untrained network that a preset would train.

    Raises: ConfigInvalid if the preset trains another kind of network.
    """
    return family.build_untrained(key, parse_recipe(read_preset(preset)["recipe"]))


def take_step(
    config: TrainConfig,
    recipe: Recipe[Any],
    batch: Batch,
    profile: HardwareProfile,
    device: torch.device,
) -> tuple[dict[str, float], float]:
    """Run one real step; return losses and seconds. Not compiled: compiling takes longer than the step."""
    settings = config.engine.model_copy(update={"global_batch": len(batch), "batch_size": None, "compile": False})
    engine = Engine(
        recipe, settings, total_images=config.budget.images, device=device, seed=config.run.seed, profile=profile
    )
    started = time.monotonic()
    losses = dict(engine.step(batch).losses)
    return losses, time.monotonic() - started


def count_inference(network: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """Count the operations of a network in eval mode on an input."""
    device = next(network.parameters()).device
    training = network.training
    try:
        return count_flops(lambda: network.eval()(*(value.to(device) for value in inputs)))
    finally:
        network.train(training)
