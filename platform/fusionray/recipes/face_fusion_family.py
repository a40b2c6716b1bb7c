"""The face-fusion recipe as a family: pairs of faces in, a generator out, supervised by an identity encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fusionray.checkpoint.evaluators import EvaluatorPaths
from fusionray.checkpoint.models import EncoderState, load_encoder, load_fusion
from fusionray.metrics.feature_network import is_same
from fusionray.nets.fusion import FusionNetwork
from fusionray.nets.generator import EMBEDDING_LENGTH
from fusionray.nets.identity import IDENTITY_SIZE, IdentityEncoder, IdentityEncoderConfig
from fusionray.recipes.arcface_crop import crop_to_arcface_affine
from fusionray.recipes.face_fusion import FaceFusionRecipe
from fusionray.recipes.face_fusion_config import FaceFusionConfig
from fusionray.recipes.face_fusion_delivery import deliver_fusion
from fusionray.recipes.face_fusion_validator import PairValidator
from fusionray.recipes.family import BundleExport, DataFacts, HeldOutRows, RecipeConfig, RecipeFamily, TrainSettings
from fusionray.recipes.identity import IdentityRecipeConfig
from fusionray.recipes.registry import register
from fusionray.recipes.single_faces import draw_crops
from fusionray.types import DecodedRows, PairBatch

# Keys of the settings that name the networks which a fusion needs.
ENCODER, EVALUATOR, READER = "recipe.identity_encoder", "validation.evaluator", "validation.attributes"


class FaceFusionFamily(RecipeFamily[FaceFusionConfig]):
    """Face fusion; see `recipes.face_fusion`."""

    name = "face_fusion"
    Config = FaceFusionConfig
    task = "faces"
    num_roles = 2
    evaluation = "face_fusion"

    def check(self, config: TrainSettings) -> None:
        """Check that generator and shards have the same size.

        Raises: ValueError.
        """
        recipe = settings_of(config)
        if recipe.generator.size != config.data.size:
            raise ValueError(
                f"recipe.generator.size={recipe.generator.size} and data.size={config.data.size} must be equal"
            )

    def dependencies(self, config: TrainSettings) -> dict[str, str]:
        """Name the encoder that supervises, and the evaluators, if there are any."""
        chosen = config.validation
        named = {ENCODER: settings_of(config).identity_encoder, EVALUATOR: chosen.evaluator, READER: chosen.attributes}
        return {key: place for key, place in named.items() if place is not None}

    def load_dependency(self, key: str, checkpoint: str) -> EncoderState | str:
        """Load the encoder that supervises; for evaluators, return the path: only rank 0 loads them.

        Raises: CheckpointMissing.
        """
        return load_encoder(checkpoint) if key == ENCODER else checkpoint

    def build_untrained(self, key: str, preset: RecipeConfig) -> EncoderState | None:
        """Build the encoder that supervises with its first weights; a dry run has no evaluator."""
        if key != ENCODER:
            return None
        assert isinstance(preset, IdentityRecipeConfig), f"{key} names a preset of the recipe {preset.name}"
        encoder: IdentityEncoderConfig = preset.encoder
        return EncoderState(encoder.model_dump(mode="json"), IdentityEncoder(encoder).state_dict())

    def check_dependencies(self, config: TrainSettings, loaded: Mapping[str, Any]) -> None:
        """Check that the evaluator is not the encoder that supervises.

        Raises: ValueError if it is.
        """
        if EVALUATOR in loaded and is_same(load_encoder(loaded[EVALUATOR]).build(), [loaded[ENCODER].build()]):
            raise ValueError(
                f"{EVALUATOR}={config.validation.evaluator}: is the encoder that supervises this run ({ENCODER}), "
                "so its scores are not independent; use another one, such as preset:identity-judge"
            )

    def needs_regions(self, config: FaceFusionConfig, *, synthetic: bool) -> bool:
        """Return whether the shards must hold face regions: not if the true fusion is rendered."""
        return not (config.paired and synthetic)

    def collate(self, roles: Sequence[DecodedRows]) -> PairBatch:
        """Pair sources and targets."""
        source, target = roles
        return PairBatch.from_rows(source, target)

    def build(self, config: FaceFusionConfig, facts: DataFacts, dependencies: Mapping[str, Any]) -> FaceFusionRecipe:
        """Build generator and discriminator around the encoder that supervises."""
        view = crop_to_arcface_affine(facts.template)
        return FaceFusionRecipe(config, identity_encoder=dependencies[ENCODER].build(), face_view_23=view)

    def describe(self, recipe: FaceFusionRecipe) -> dict[str, Any]:
        """Give the config of the encoder that supervised: it is delivered with the generator."""
        encoder = recipe.frozen["identity"].config
        assert isinstance(encoder, IdentityEncoderConfig)
        return {"identity_encoder": encoder.model_dump(mode="json")}

    def build_validator(
        self, config: TrainSettings, dependencies: Mapping[str, Any], held_out: HeldOutRows, device: torch.device
    ) -> PairValidator | None:
        """Build the evaluators of `fusionray evaluate` if `validation.evaluator` names one."""
        if EVALUATOR not in dependencies:
            return None
        evaluators = EvaluatorPaths(
            dependencies[EVALUATOR], dependencies.get(READER), features=None, with_landmarks=False
        )
        return PairValidator(config, evaluators, held_out, device)

    def draw_batch(self, config: TrainSettings, count: int) -> PairBatch:
        """Draw noise for pairs, one of them of the same person, so that every loss applies."""
        source, target = draw_crops(config, count)
        return PairBatch(source, target, torch.arange(count) < 1)

    def trace_inference(self, recipe: FaceFusionRecipe) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Fuse one pair whose source is embedded already."""
        size = recipe.config.generator.size
        face = torch.zeros(1, 3, IDENTITY_SIZE, IDENTITY_SIZE)
        return recipe.networks["generator"], (face, torch.zeros(1, EMBEDDING_LENGTH), torch.zeros(1, 3, size, size))

    def export(self, checkpoint: str) -> BundleExport:
        """Give the EMA generator of a checkpoint and the encoder that supervised it.

        Raises: CheckpointMissing.
        """
        trained = load_fusion(checkpoint)
        return deliver_fusion(trained.network, trained.encoder, trained.config.data.template)

    def deliver(self, recipe: FaceFusionRecipe, template: str) -> BundleExport:
        """Give the generator that is being trained and the encoder that supervises it."""
        network, encoder = recipe.networks["generator"].eval(), recipe.frozen["identity"].eval()
        assert isinstance(network, FusionNetwork)
        assert isinstance(encoder, IdentityEncoder)
        return deliver_fusion(network, encoder, template)


def settings_of(config: TrainSettings) -> FaceFusionConfig:
    """Give the recipe's settings of a configuration."""
    assert isinstance(config.recipe, FaceFusionConfig)
    return config.recipe


register(FaceFusionFamily())
