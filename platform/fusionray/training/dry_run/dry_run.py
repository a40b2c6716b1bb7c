"""Dry run of a training: check the settings, estimate memory and cost, and take one real step, without Ray.

Data is optional: if the shards exist, their manifest is checked; the step always learns from noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from fusionray.checkpoint.info import find_dependency
from fusionray.config import (
    hide_passwords,
    merge_trees,
    parse_overrides,
    read_preset,
    read_yaml,
    replace_setting,
    validate,
)
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
# Without shards the number of people is unknown; the dry run sizes the margin head for this many.
ASSUMED_PEOPLE = 1000


@dataclass(frozen=True)
class DryRun:
    """The result of a dry run.

    `footprint`: FLOPs and bytes that a step needs per sample. `plan`: batch sizes and strategy that `auto`
    would choose. `losses`: by name, of the real step. `step_seconds`: its wall time, uncompiled.
    """

    footprint: Footprint
    plan: MemoryPlan
    losses: dict[str, float]
    step_seconds: float


def load_dry_config(file: str | None, overrides: Sequence[str], preset: str | None) -> TrainConfig:
    """Build the configuration as `load_config` does, but allow `data.shards` to be unset (it becomes `NO_SHARDS`).

    Raises: ConfigInvalid naming the file or override and the key.
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
    """Check the data, measure one step, plan memory for the whole run, and take one step in which all phases run.

    `log_line` is called with each piece of the printed report as soon as it is known.

    Raises: ConfigInvalid, ShardMismatch, CheckpointMissing, as the training would; TrainingFailed if a step of the
        fewest images does not fit into the memory of this machine.
    """
    config = with_absolute_shards(config)
    check_data(config)
    log_line(yaml.safe_dump(hide_passwords(config.model_dump(mode="json")), sort_keys=False, width=120))
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
        batch = family.dummy_batch(config, few)
        footprint = measure_step(
            recipe, batch.to(device), precision, activation_checkpointing=config.engine.activation_checkpointing
        )
        for line in describe_networks(footprint, count_inference(*family.inference_example(recipe))):
            log_line(line)
        plan = make_plan(config, footprint, device)
        for line in describe_plan(config, plan):
            log_line(line)
        linear_images = config.engine.schedule.linear_images
        log_line(describe_rates(recipe.optimizers, plan.global_batch, linear_images))
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
    """Return a copy of the profile with the precision, channels_last and compile of `config` that are not `auto`."""
    engine = config.engine
    chosen = {"precision": engine.precision, "channels_last": engine.channels_last, "compile": engine.compile}
    return profile.model_copy(update={name: value for name, value in chosen.items() if value != "auto"})


def with_absolute_shards(config: TrainConfig) -> TrainConfig:
    """Resolve the folder of the shards as a training does."""
    shards = config.data.shards
    if shards == NO_SHARDS or shards.startswith(SYNTHETIC_PREFIX):
        return config
    return replace_setting(config, "data.shards", resolve_location(shards))


def check_data(config: TrainConfig) -> None:
    """Check size, task and template of the shards as the training would; do nothing if there are none.

    Raises: ShardMismatch.
    """
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
    """Return whether the shards exist; `synthetic://...` counts as missing, because only a training prepares it."""
    shards = config.data.shards
    if shards == NO_SHARDS or shards.startswith(SYNTHETIC_PREFIX):
        return False
    return storage.exists(storage.join(shards, "manifest.json"))


def choose_device(config: TrainConfig) -> torch.device:
    """Return the first GPU of this machine if `workers.device` allows one and torch sees one, else the CPU.

    Raises: ConfigInvalid if `workers.device` is `cuda` and torch sees no GPU.
    """
    wanted = config.workers.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigInvalid(
            "workers.device=cuda: this machine has no GPU that torch can use; try the dry run on a node"
        )
    return torch.device("cuda", 0) if wanted != "cpu" and torch.cuda.is_available() else torch.device("cpu")


def build_dry_recipe(config: TrainConfig) -> tuple[Recipe[Any], list[str]]:
    """Build the recipe, and notes for the user on what was assumed.

    Networks that the training would train beforehand, such as an evaluator named by its preset, are untrained here.

    Raises: ConfigInvalid, CheckpointMissing.
    """
    num_people, is_synthetic = ASSUMED_PEOPLE, config.data.shards.startswith(SYNTHETIC_PREFIX)
    notes = []
    if has_shards(config):
        manifest = read_manifest(config.data.shards)
        num_people, is_synthetic = manifest.splits["train"].identities, manifest.synthetic
    elif config.family.sized_by_people:
        notes.append(f"no shards yet: the margin head is built for {ASSUMED_PEOPLE} people")
    dependencies, more = build_dependencies(config)
    dataset = config.dataset_info(num_people=num_people, synthetic=is_synthetic)
    return build_recipe(config, dataset, dependencies), notes + more


def build_dependencies(config: TrainConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the networks that the recipe depends on, by the key of their setting, and a note for each.

    A checkpoint is loaded; for `preset:NAME` the network is built untrained.

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
            built[key] = family.load_dependency(key, find_dependency(place))
            notes.append(f"{key}={place}: found")
    return built, notes


def build_untrained(family: RecipeFamily[Any], key: str, preset: str) -> Any:
    """Build the untrained network that a preset would train for the setting `key`.

    Raises: ConfigInvalid if the preset does not train such a network.
    """
    return family.build_untrained(key, parse_recipe(read_preset(preset)["recipe"]))


def take_step(
    config: TrainConfig,
    recipe: Recipe[Any],
    batch: Batch,
    profile: HardwareProfile,
    device: torch.device,
) -> tuple[dict[str, float], float]:
    """Take one optimizer step on `batch`, which changes the networks; return the losses by name and the wall seconds.

    The networks are not compiled, because compiling takes longer than the step.
    """
    settings = config.engine.model_copy(update={"global_batch": len(batch), "batch_size": None, "compile": False})
    engine = Engine(
        recipe, settings, total_images=config.budget.images, device=device, seed=config.run.seed, profile=profile
    )
    started = time.monotonic()
    losses = dict(engine.step(batch).losses)
    return losses, time.monotonic() - started


def count_inference(network: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """Return the FLOPs of one forward pass in eval mode; the training mode is restored."""
    device = next(network.parameters()).device
    training = network.training
    try:
        return count_flops(lambda: network.eval()(*(value.to(device) for value in inputs)))
    finally:
        network.train(training)
