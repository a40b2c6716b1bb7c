"""The evaluation stage: measure a model by the protocol of its family, and report the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusionray.bundle.bundle import read_bundle
from fusionray.bundle.description import FACE_FUSION
from fusionray.checkpoint.info import read_info
from fusionray.checkpoint.models import read_stored_config
from fusionray.errors import BundleInvalid, ConfigInvalid
from fusionray.evaluation.config import EvaluateConfig
from fusionray.evaluation.face_fusion import evaluate_fusion
from fusionray.evaluation.fusion_model import is_bundle, resolve_model
from fusionray.evaluation.pictures import evaluate_pictures
from fusionray.evaluation.result import EvaluateResult
from fusionray.recipes.family import RecipeFamily
from fusionray.recipes.registry import find_family

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
    family = find_model_family(config)
    if family.evaluation not in PROTOCOLS:
        raise ConfigInvalid(f"{config.model}: models of the recipe {family.name} cannot be evaluated on their own")
    return PROTOCOLS[family.evaluation](config, family)


def find_model_family(config: EvaluateConfig) -> RecipeFamily[Any]:
    """Find the family of a bundle, checkpoint or run by the recipe in its training configuration.

    Raises: ConfigInvalid if the family is unknown; BundleInvalid, CheckpointMissing.
    """
    location = resolve_model(config.model)
    if not is_bundle(location):
        return find_family(read_stored_config(location, read_info(location)).recipe.name)
    uri = config.choose_tracker()
    description = read_bundle(location, uri).description
    # Imported models fuse faces, and have no training configuration.
    if description.task == FACE_FUSION:
        return find_family(FACE_FUSION)
    try:
        return find_family(description.lineage.config["recipe"]["name"])
    except (KeyError, TypeError):
        raise BundleInvalid(f"{location}: does not say which recipe trained it; evaluate its run instead") from None
