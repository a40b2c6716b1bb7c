"""Models of pictures opened for an evaluation, and the scores of one beside those of a baseline.

Shape suffixes: N draws, R roles, S side in pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusionray.errors import ConfigInvalid
from fusionray.evaluation.fusion_model import ModelInfo, resolve_model
from fusionray.evaluation.picture_model import PictureModel, find_model_family, open_picture_model
from fusionray.metrics.fusion_metrics import MetricColumns
from fusionray.nets.pixels import to_float, to_uint8
from fusionray.recipes.family import RecipeFamily
from fusionray.recipes.measuring import PictureScorer


@dataclass(frozen=True)
class OpenedModel:
    """A model that is ready to run, where it was loaded from, its family and its metadata."""

    location: str
    family: RecipeFamily[Any]
    network: PictureModel
    info: ModelInfo


def open_model(location: str, family: RecipeFamily[Any], uri: str, device: torch.device) -> OpenedModel:
    """Open a model of a family at a location that `resolve_model` returned.

    Raises: what `open_picture_model` raises.
    """
    return OpenedModel(location, family, *open_picture_model(location, family, uri, device))


def open_baseline(named: str | None, model: OpenedModel, uri: str, device: torch.device) -> OpenedModel | None:
    """Open the model that the setting `baseline` names, to compare `model` with; None if it names none.

    Raises: ConfigInvalid for a model of other pictures; any FusionRayError from loading it.
    """
    if named is None:
        return None
    location = resolve_model(named)
    family = find_model_family(location, uri)
    baseline = open_model(location, family, uri, device)
    extent, other = ((opened.family.num_roles, opened.family.task, opened.info.size) for opened in (model, baseline))
    if extent != other:
        raise ConfigInvalid(
            f"baseline={named}: is of the recipe {family.name} at {baseline.info.size} px, which takes other pictures "
            f"than {model.info.name} (recipe {model.family.name}, {model.info.size} px)"
        )
    return baseline


@dataclass(frozen=True)
class ScoredModel:
    """A model under evaluation, its scorer, which computes on `device`, and a model to compare with, if any.

    `metrics`: names in the table of the evaluation; scores of the baseline that are not in it are left out.
    """

    model: PictureModel
    scorer: PictureScorer
    device: torch.device
    baseline: PictureModel | None
    metrics: frozenset[str]

    def score(self, pictures: Sequence[Tensor]) -> MetricColumns:
        """Run the models on R inputs uint8 [N,3,S,S] and score their outputs: float32 [N] by name."""
        scores = self.score_one(self.model, pictures)
        if self.baseline is not None:
            named = ((f"{name}_baseline", values) for name, values in self.score_one(self.baseline, pictures).items())
            scores |= {name: values for name, values in named if name in self.metrics}
        return scores

    def score_one(self, model: PictureModel, pictures: Sequence[Tensor]) -> MetricColumns:
        """Run one model and score its outputs."""
        output, *inputs = (to_float(picture.to(self.device)) for picture in (model.run(pictures), *pictures))
        return {name: values.cpu().numpy() for name, values in self.scorer.score(output, inputs).items()}

    @property
    def heads(self) -> tuple[str, ...]:
        """Return the names of what `show` returns."""
        baseline = () if self.baseline is None else ("baseline",)
        return (*self.scorer.roles, "output", *baseline, "reference")

    def show(self, pictures: Sequence[Tensor]) -> list[Tensor]:
        """Return R inputs, the output of each model, and the reference if there is one, uint8 [N,3,S,S] each."""
        reference = self.scorer.reference([to_float(picture.to(self.device)) for picture in pictures])
        models = [self.model] if self.baseline is None else [self.model, self.baseline]
        outputs = [model.run(pictures) for model in models]
        return [*pictures, *outputs, *([] if reference is None else [to_uint8(reference).cpu()])]


def describe_baseline(model: OpenedModel, baseline: OpenedModel) -> Iterator[str]:
    """Yield the notes of a report with a baseline: what it is, how long both were trained, then caveats."""
    yield (
        f"Baseline {baseline.info.name} ({baseline.info.digest[:12]}), of the recipe {baseline.family.name}, trained "
        f"{describe_training(baseline.info)}; the model, of the recipe {model.family.name}, "
        f"{describe_training(model.info)}. These seconds compare only if both had the same cores or GPUs."
    )
    if baseline.info.data_digest != model.info.data_digest:
        yield "The baseline was trained on other shards than the model."


def describe_training(info: ModelInfo) -> str:
    """Say how long a model was trained."""
    if info.seconds is None or info.images is None:
        return "for a time that its bundle does not hold"
    return f"{info.seconds:,.0f} s on {info.images:,} images"
