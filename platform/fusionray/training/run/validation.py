"""Validation of a run while it trains, always on the same held-out rows, which the ranks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from fusionray.data.decoding import CropDecoder
from fusionray.data.held_out import HeldOutCrops
from fusionray.data.shards import Manifest
from fusionray.recipes.measuring import Validator
from fusionray.recipes.recipe import Recipe, tile
from fusionray.training.config import TrainConfig

PREVIEW_PAIRS = 8
EVALUATION_BATCH = 64

Columns = dict[str, Tensor]


class Validation:
    """Measure networks on the validation split, and draw a preview; all ranks make the same calls.

    `dependencies`: what the recipe's family loaded for the run, including evaluators. `group`: the ranks, in a group of
    their hosts; None for a single rank.
    """

    def __init__(
        self,
        config: TrainConfig,
        manifest: Manifest,
        decoder: CropDecoder,
        device: torch.device,
        log_line: Callable[[str], None],
        *,
        dependencies: Mapping[str, Any],
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.config = config
        self.manifest = manifest
        self.decoder = decoder
        self.device = device
        self.log_line = log_line
        self.dependencies = dependencies
        self.group = group
        self.rank = dist.get_rank(group) if group else 0
        self.num_ranks = dist.get_world_size(group) if group else 1

    def evaluate(
        self, recipe: Recipe[Any], networks: Mapping[str, nn.Module]
    ) -> tuple[dict[str, float], NDArray[np.uint8] | None]:
        """Return metrics, and a preview [H,W,3] RGB or None, on rank 0; without held-out rows, and elsewhere, none."""
        held_out = self.held_out
        if held_out is None:
            return {}, None
        family = self.config.family
        draws = held_out.draw(family.num_roles, self.config.run.seed, family.source_folder)
        columns = self.share(held_out, draws, partial(recipe.measure, networks))
        validator = self.validator
        own: Columns = {}
        if validator is not None:
            own = self.share(held_out, validator.draws, partial(validator.measure, recipe, networks))
        if self.rank:
            return {}, None
        metrics = recipe.summarise(columns)
        if validator is not None:
            # An independent evaluator overrides the recipe's own metric of the same name.
            metrics |= validator.summarise(own)
        first = next(held_out.batches(draws[:PREVIEW_PAIRS], PREVIEW_PAIRS))
        grid = recipe.preview(networks, first.to(self.device))
        return metrics, None if grid is None else tile(grid)

    def share(
        self, held_out: HeldOutCrops, draws: NDArray[np.int64], measure: Callable[[Any], Mapping[str, Tensor]]
    ) -> Columns:
        """Measure draws [M,R] in batches, which ranks take in turns; return all columns [M,...] on rank 0."""
        starts = range(0, len(draws), EVALUATION_BATCH)
        own: list[Columns] = []
        for start in starts[self.rank :: self.num_ranks]:
            (batch,) = held_out.batches(draws[start : start + EVALUATION_BATCH], EVALUATION_BATCH)
            own.append({name: column.cpu() for name, column in measure(batch.to(self.device)).items()})
        everyone: list[Any] = [own]
        if self.group is not None:
            everyone = [None] * self.num_ranks
            dist.gather_object(own, everyone if self.rank == 0 else None, dst=0, group=self.group)
            if self.rank:
                return {}
        # In the order of the draws.
        parts = [everyone[number % self.num_ranks][number // self.num_ranks] for number in range(len(starts))]
        return {name: torch.cat([part[name] for part in parts]) for name in (parts[0] if parts else ())}

    @cached_property
    def held_out(self) -> HeldOutCrops | None:
        """Read the held-out rows once; log the reason and return None if the recipe cannot be evaluated on them."""
        config, data, family = self.config, self.config.data, self.config.family
        if not self.manifest.files("validation") or data.validation_images == 0:
            return None
        held_out = HeldOutCrops(
            data.shards,
            self.manifest,
            data.validation_images,
            self.decoder,
            family.collate,
            with_regions=family.needs_regions(config.recipe, synthetic=self.manifest.synthetic),
        )
        missing = family.describe_shortage(len(held_out), len(held_out.crops.people))
        if missing:
            if self.rank == 0:
                self.log_line(
                    f"train {config.run.name}: no validation, since the {len(held_out)} held-out pictures do not show "
                    f"{missing}; raise data.validation_images, or hold out more people in prepare"
                )
            return None
        return held_out

    @cached_property
    def validator(self) -> Validator | None:
        """Load the evaluators, at the first validation."""
        assert self.held_out is not None
        return self.config.family.build_validator(self.config, self.dependencies, self.held_out, self.device)
