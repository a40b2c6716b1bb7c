"""Validation of a fusion while it trains: the evaluation's metrics on pairs of the validation split."""

from __future__ import annotations

from collections.abc import Mapping

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
from fusionray.recipes.face_fusion import FaceFusionRecipe
from fusionray.recipes.family import HeldOutRows, TrainSettings

# Gallery pictures of each person, as in `fusionray evaluate`.
GALLERY_IMAGES = 4
BATCH = 32


class RecipeFusionModel:
    """A fusion in training, as it would be delivered now."""

    def __init__(self, recipe: FaceFusionRecipe, networks: Mapping[str, nn.Module]) -> None:
        self.recipe = recipe
        self.networks = networks

    def fuse(self, source: Tensor, target: Tensor) -> Tensor:
        """Fuse crops, uint8 [N,3,S,S] RGB in and out."""
        return to_uint8(self.recipe.fuse(self.networks, to_float(source), to_float(target)).output)

    def embed(self, face: Tensor) -> Tensor:
        """Embed faces [N,3,112,112] in [-1,1] with the encoder that supervises, [N,512] of unit length."""
        embedding: Tensor = self.recipe.frozen["identity"](face)
        return embedding


class PairValidator:
    """Evaluators of a run on a fixed list of held-out pairs; the gallery templates are computed once."""

    def __init__(
        self, config: TrainSettings, evaluators: EvaluatorPaths, held_out: HeldOutRows, device: torch.device
    ) -> None:
        data = config.data
        self.held_out = held_out
        names = np.array(held_out.groups)
        plan = plan_pairs(
            names.tolist(),
            pairs=len(names),
            people=len(np.unique(names)),
            gallery_images=GALLERY_IMAGES,
            seed=config.run.seed,
        )
        self.pairs = plan.pairs
        self.source_N = names[plan.pairs[:, 0]]
        face_crop = ArcFaceCrop(crop_to_arcface_affine(data.template)).to(device)
        self.metrics = FusionMetrics(
            evaluators.build(device, template=data.template, size=data.size), face_crop, device
        )
        gallery = held_out.decode(plan.gallery)
        described = join(self.metrics.embed_crops(part) for part in torch.split(gallery, BATCH))
        self.templates = build_templates(described["embedding"], names[plan.gallery])

    def validate(self, recipe: FaceFusionRecipe, networks: Mapping[str, nn.Module]) -> dict[str, float]:
        """Fuse the pairs and return metrics named `validation_<key>`, with the keys of an evaluation."""
        model = RecipeFusionModel(recipe, networks)
        columns = join(self.metrics.compute(model, batch) for batch in self.held_out.batches(self.pairs, BATCH))
        values = summarise(score_pairs(columns, self.templates, self.source_N), self.source_N).values
        return {f"validation_{key}": value for key, value in values.items()}
