"""Validation of face fusion during training: the metrics of `fusionray evaluate` on pairs of the validation split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fusionray.checkpoint.evaluators import EvaluatorPaths
from fusionray.metrics.aggregate import score_pairs, summarise
from fusionray.metrics.fusion_metrics import FusionMetrics, join
from fusionray.metrics.pair_plan import plan_pairs
from fusionray.metrics.retrieval import build_templates
from fusionray.nets.pixels import to_float, to_uint8
from fusionray.recipes.arcface_crop import ArcFaceCrop, crop_to_arcface_affine
from fusionray.recipes.face_fusion.recipe import FaceFusionRecipe
from fusionray.recipes.family import TrainSettings
from fusionray.recipes.measuring import HeldOutRows
from fusionray.types import PairBatch

# Gallery pictures of each person, as in `fusionray evaluate`.
GALLERY_IMAGES = 4
BATCH_SIZE = 32


class RecipeFusionModel:
    """A recipe in training as a `FusionModel`, which fuses as its export would."""

    def __init__(self, recipe: FaceFusionRecipe, networks: Mapping[str, nn.Module]) -> None:
        self.recipe = recipe
        self.networks = networks

    def fuse(self, source: Tensor, target: Tensor) -> Tensor:
        """Fuse crops, uint8 [N,3,S,S] RGB in and out."""
        return to_uint8(self.recipe.fuse(self.networks, to_float(source), to_float(target)).output)

    def embed(self, face: Tensor) -> Tensor:
        """Embed faces [N,3,112,112] in [-1,1] with the supervising encoder: [N,512] of unit length."""
        embedding: Tensor = self.recipe.frozen["identity"](face)
        return embedding


class PairValidator:
    """Measure a recipe on a fixed list of held-out pairs; the constructor computes the gallery templates.

    `draws`: the pairs, int64 [M,2].
    """

    def __init__(
        self, config: TrainSettings, evaluators: EvaluatorPaths, held_out: HeldOutRows, device: torch.device
    ) -> None:
        data = config.data
        names = np.array(held_out.groups)
        plan = plan_pairs(
            names.tolist(),
            pairs=len(names),
            people=len(np.unique(names)),
            gallery_images=GALLERY_IMAGES,
            seed=config.run.seed,
        )
        self.draws = plan.pairs
        self.source_N = names[plan.pairs[:, 0]]
        face_crop = ArcFaceCrop(crop_to_arcface_affine(data.template)).to(device)
        self.metrics = FusionMetrics(
            evaluators.build(device, template=data.template, size=data.size), face_crop, device
        )
        gallery = held_out.decode(plan.gallery)
        embedded = join(self.metrics.embed_crops(part) for part in torch.split(gallery, BATCH_SIZE))
        self.templates = build_templates(embedded["embedding"], names[plan.gallery])

    def measure(
        self, recipe: FaceFusionRecipe, networks: Mapping[str, nn.Module], batch: PairBatch
    ) -> dict[str, Tensor]:
        """Fuse a batch and return the columns of `FusionMetrics`."""
        if not recipe.all_skin:
            # An outline is no skin, and would be measured as such.
            batch = replace(batch, region=None)
        measured = self.metrics.compute(RecipeFusionModel(recipe, networks), batch)
        return {name: torch.from_numpy(column) for name, column in measured.items()}

    def summarise(self, columns: Mapping[str, Tensor]) -> dict[str, float]:
        """Return metrics named `validation_<key>`, with the keys of an evaluation."""
        measured = {name: column.numpy() for name, column in columns.items()}
        values = summarise(score_pairs(measured, self.templates, self.source_N), self.source_N).values
        return {f"validation_{key}": value for key, value in values.items()}
