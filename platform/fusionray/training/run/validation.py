"""Looking at a run while it trains: held-out people, always the same pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fusionray.data.decoding import CropDecoder, collate_faces, collate_pairs
from fusionray.data.pairs import Crops, SampledPairs, crops_from_tables, draw_held_out_pairs, regroup
from fusionray.data.reading import read_split
from fusionray.data.shards import Manifest
from fusionray.evaluation.evaluators import EvaluatorPaths
from fusionray.recipes.attributes import AttributesRecipeConfig
from fusionray.recipes.face_fusion import FaceFusionRecipe
from fusionray.recipes.identity import IdentityRecipeConfig
from fusionray.recipes.recipe import Recipe, tile
from fusionray.training.config import RecipeConfig, TrainConfig
from fusionray.training.run.pair_validator import PairValidator, RecipeFusionModel
from fusionray.types import Batch

PREVIEW_PAIRS = 8
EVALUATION_BATCH = 64


class Validation:
    """Measure networks on the validation split, and draw what they do."""

    def __init__(
        self,
        config: TrainConfig,
        manifest: Manifest,
        decoder: CropDecoder,
        device: torch.device,
        say: Callable[[str], None],
        *,
        judges: EvaluatorPaths | None = None,
    ) -> None:
        self.config = config
        self.manifest = manifest
        self.decoder = decoder
        self.device = device
        self.say = say
        self.judges = judges
        self.court: PairValidator | None = None

    def look(
        self, recipe: Recipe[Any], networks: Mapping[str, nn.Module]
    ) -> tuple[dict[str, float], NDArray[np.uint8] | None]:
        """Return metrics, and a picture [H,W,3] where the recipe draws one; nothing where no one is held out."""
        batches = list(self.batches())
        metrics = recipe.evaluate(networks, batches)
        if not batches:
            return metrics, None
        if self.judges is not None:
            # What an outsider says of the same thing wins over what the recipe says of itself.
            metrics |= self.judge(recipe, networks, self.judges)
        grid = recipe.preview(networks, batches[0].head(PREVIEW_PAIRS))
        return metrics, None if grid is None else tile(grid)

    def judge(self, recipe: Recipe[Any], networks: Mapping[str, nn.Module], places: EvaluatorPaths) -> dict[str, float]:
        """Judge a fusion on held-out pairs; the judges are loaded at the first look."""
        assert isinstance(recipe, FaceFusionRecipe)
        if self.court is None:
            self.court = PairValidator(self.config, self.manifest, places, self.decoder, self.device)
        return self.court.judge(RecipeFusionModel(recipe, networks))

    def batches(self) -> Iterator[Batch]:
        """Yield the held-out pictures, as pairs for a fusion."""
        config, data = self.config, self.config.data
        if not self.manifest.files("validation") or data.validation_images == 0:
            return
        table = read_split(data.shards, self.manifest, "validation")
        crops = crops_from_tables([table.slice(0, data.validation_images)])
        missing = tell_missing(config.recipe, crops)
        if missing:
            self.say(
                f"train {config.run.name}: not evaluated, since the {len(crops)} held-out pictures are not of "
                f"{missing}; raise data.validation_images, or hold out more people in prepare"
            )
            return
        if config.streams == "pairs":
            pairs = draw_held_out_pairs(crops, len(crops), config.run.seed)
            for group in regroup([pairs], EVALUATION_BATCH):
                yield collate_pairs(group, self.decoder).to(self.device)
        else:
            labels = {person: index for index, person in enumerate(sorted(crops.people))}
            each = SampledPairs(crops, np.arange(len(crops))[:, None])
            for group in regroup([each], EVALUATION_BATCH):
                yield collate_faces(group, self.decoder, labels).to(self.device)


def tell_missing(recipe: RecipeConfig, crops: Crops) -> str:
    """Say whom held-out pictures would have to show for a recipe to be evaluated on them; nothing if they do.

    A fusion pairs two people, verification also needs two pictures of one; a reader takes what there is.
    """
    num_people = len(crops.people)
    if isinstance(recipe, AttributesRecipeConfig) or len(crops) > num_people > 1:
        return ""
    if isinstance(recipe, IdentityRecipeConfig):
        return "at least two people, one of them twice"
    return "" if num_people > 1 else "at least two people"
