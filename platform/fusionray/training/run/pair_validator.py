"""Judging a fusion while it trains: the evaluation's meter on held-out pairs of the validation split."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from fusionray.data.decoding import CropDecoder, collate_pairs
from fusionray.data.pairs import SampledPairs, crops_from_tables, regroup
from fusionray.data.reading import read_split
from fusionray.data.shards import Manifest
from fusionray.evaluation.aggregate import score_pairs, summarise
from fusionray.evaluation.evaluators import EvaluatorPaths
from fusionray.evaluation.measure import FusionModel, Meter, join
from fusionray.evaluation.protocol import plan_pairs
from fusionray.metrics.retrieval import build_templates
from fusionray.recipes.face_fusion import FaceFusionRecipe
from fusionray.recipes.identity import ArcFaceCrop
from fusionray.recipes.recipe import to_float, to_uint8
from fusionray.training.build import crop_to_arcface_affine
from fusionray.training.config import TrainConfig

# Pictures of each person that make its template, as in `fusionray evaluate`.
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
    """The judges of a run and the pairs that they always look at; templates are made once."""

    def __init__(
        self,
        config: TrainConfig,
        manifest: Manifest,
        places: EvaluatorPaths,
        decoder: CropDecoder,
        device: torch.device,
    ) -> None:
        data = config.data
        table = read_split(data.shards, manifest, "validation").slice(0, data.validation_images)
        self.crops = crops_from_tables([table])
        self.decoder = decoder
        names = np.array(self.crops.people)[self.crops.person]
        plan = plan_pairs(
            names.tolist(),
            pairs=len(self.crops),
            people=len(self.crops.people),
            enrolled=GALLERY_IMAGES,
            seed=config.run.seed,
        )
        self.pairs = SampledPairs(self.crops, plan.pairs)
        self.source_N = names[plan.pairs[:, 0]]
        judges = places.build(device, template=data.template, size=data.size)
        self.meter = Meter(judges, ArcFaceCrop(crop_to_arcface_affine(data.template)).to(device), device)
        enrolled = decoder.decode(self.crops.select(plan.enrolled))
        described = join(self.meter.measure_crops(part) for part in torch.split(enrolled, BATCH))
        self.templates = build_templates(described["embedding"], names[plan.enrolled])

    def judge(self, subject: FusionModel) -> dict[str, float]:
        """Fuse the pairs and sum up, as metrics `validation_<key>` by the keys of an evaluation."""
        groups = regroup([self.pairs], BATCH)
        columns = join(self.meter.measure(subject, collate_pairs(group, self.decoder)) for group in groups)
        values = summarise(score_pairs(columns, self.templates, self.source_N), self.source_N).values
        return {f"validation_{key}": value for key, value in values.items()}
