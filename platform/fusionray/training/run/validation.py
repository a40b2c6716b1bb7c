"""Validation of a run while it trains, always on the same held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fusionray.data.decoding import CropDecoder
from fusionray.data.held_out import HeldOutCrops
from fusionray.data.shards import Manifest
from fusionray.recipes.family import Validator
from fusionray.recipes.recipe import Recipe, tile
from fusionray.training.config import TrainConfig
from fusionray.types import Batch

PREVIEW_PAIRS = 8
EVALUATION_BATCH = 64


class Validation:
    """Measure networks on the validation split, and draw a preview.

    `dependencies`: what the recipe's family loaded for the run, including evaluators.
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
    ) -> None:
        self.config = config
        self.manifest = manifest
        self.decoder = decoder
        self.device = device
        self.log_line = log_line
        self.dependencies = dependencies
        self.validator: Validator | None = None

    def evaluate(
        self, recipe: Recipe[Any], networks: Mapping[str, nn.Module]
    ) -> tuple[dict[str, float], NDArray[np.uint8] | None]:
        """Return metrics, and a preview [H,W,3] RGB or None; without held-out rows, only what the recipe knows."""
        held_out = self.open_held_out()
        batches = [] if held_out is None else list(self.batches(held_out))
        metrics = recipe.evaluate(networks, batches)
        if held_out is None or not batches:
            return metrics, None
        if self.validator is None:
            # The evaluators are loaded at the first validation.
            family = self.config.family
            self.validator = family.build_validator(self.config, self.dependencies, held_out, self.device)
        if self.validator is not None:
            # An independent evaluator overrides the recipe's own metric of the same name.
            metrics |= self.validator.validate(recipe, networks)
        grid = recipe.preview(networks, batches[0].head(PREVIEW_PAIRS))
        return metrics, None if grid is None else tile(grid)

    def open_held_out(self) -> HeldOutCrops | None:
        """Read the held-out rows; log the reason and return None if the recipe cannot be evaluated on them."""
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
            self.log_line(
                f"train {config.run.name}: no validation, since the {len(held_out)} held-out pictures do not show "
                f"{missing}; raise data.validation_images, or hold out more people in prepare"
            )
            return None
        return held_out

    def batches(self, held_out: HeldOutCrops) -> Iterator[Batch]:
        """Yield batches of held-out rows or pairs on the device."""
        draws = held_out.draw(self.config.family.num_roles, self.config.run.seed)
        return (batch.to(self.device) for batch in held_out.batches(draws, EVALUATION_BATCH))
