"""The evaluation stage: measure a model by the protocol of its family, and report the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusionray.errors import ConfigInvalid
from fusionray.evaluation.config import EvaluateConfig
from fusionray.evaluation.face_fusion import evaluate_fusion
from fusionray.evaluation.fusion_model import resolve_model
from fusionray.evaluation.picture_model import find_model_family
from fusionray.evaluation.pictures import evaluate_pictures
from fusionray.evaluation.result import EvaluateResult
from fusionray.recipes.family import RecipeFamily

# Protocols by `RecipeFamily.evaluation`.
PROTOCOLS: dict[str, Callable[[EvaluateConfig, RecipeFamily[Any]], EvaluateResult]] = {
    "face_fusion": lambda config, _: evaluate_fusion(config),
    "pictures": evaluate_pictures,
}


def evaluate(config: EvaluateConfig) -> EvaluateResult:
    """Measure a model on the connected Ray cluster; train evaluators that a preset names first.

    Equal settings, model and shards give equal figures. A call replaces the results of an earlier one.

    Raises: ConfigInvalid if the model's family names no protocol; any FusionRayError of the protocol.
    """
    family = find_model_family(resolve_model(config.model), config.choose_tracker())
    if family.evaluation not in PROTOCOLS:
        raise ConfigInvalid(f"{config.model}: models of the recipe {family.name} cannot be evaluated on their own")
    return PROTOCOLS[family.evaluation](config, family)
