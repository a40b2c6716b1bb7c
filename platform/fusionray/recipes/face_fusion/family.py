"""The family of the face-fusion recipe: pairs of faces in, a generator out, supervised by an identity encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fusionray.checkpoint.evaluators import EvaluatorPaths
from fusionray.checkpoint.info import read_info
from fusionray.checkpoint.models import EncoderState, load_encoder, load_fusion
from fusionray.faces.blending.skin import Skin
from fusionray.metrics.feature_network import is_same_encoder
from fusionray.nets.fusion import FusionNetwork
from fusionray.nets.generator import EMBEDDING_LENGTH
from fusionray.nets.identity import IDENTITY_SIZE, IdentityEncoder, IdentityEncoderConfig
from fusionray.recipes.arcface_crop import crop_to_arcface_affine
from fusionray.recipes.bundle_export import BundleExport
from fusionray.recipes.face_fusion.export import export_fusion
from fusionray.recipes.face_fusion.recipe import FaceFusionRecipe
from fusionray.recipes.face_fusion.settings import FaceFusionConfig
from fusionray.recipes.face_fusion.validator import PairValidator
from fusionray.recipes.family import DatasetInfo, RecipeConfig, RecipeFamily, TrainSettings
from fusionray.recipes.identity import IdentityRecipeConfig
from fusionray.recipes.measuring import HeldOutRows
from fusionray.recipes.registry import register
from fusionray.recipes.single_faces import noise_crops
from fusionray.types import DecodedRows, PairBatch

# Settings that name the trained networks on which a run depends.
ENCODER, EVALUATOR, READER = "recipe.identity_encoder", "validation.evaluator", "validation.attributes"
# Key of a checkpoint's metadata: whether the generator changes all visible skin, or the middle of the face alone.
ALL_SKIN = "all_skin"


class FaceFusionFamily(RecipeFamily[FaceFusionConfig]):
    """Face fusion; see `recipes.face_fusion.recipe`."""

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
        """Name the supervising encoder, and the evaluators of the validation, if there are any."""
        chosen = config.validation
        named = {ENCODER: settings_of(config).identity_encoder, EVALUATOR: chosen.evaluator, READER: chosen.attributes}
        return {key: location for key, location in named.items() if location is not None}

    def load_dependency(self, key: str, checkpoint: str) -> EncoderState | str:
        """Load the supervising encoder; of an evaluator, which ranks load at their first validation, return the path.

        Raises: CheckpointMissing.
        """
        return load_encoder(checkpoint) if key == ENCODER else checkpoint

    def build_untrained(self, key: str, preset: RecipeConfig) -> EncoderState | None:
        """Build the supervising encoder with initial weights; None for evaluators, which a dry run does not use."""
        if key != ENCODER:
            return None
        assert isinstance(preset, IdentityRecipeConfig), f"{key} names a preset of the recipe {preset.name}"
        encoder: IdentityEncoderConfig = preset.encoder
        return EncoderState(encoder.model_dump(mode="json"), IdentityEncoder(encoder).state_dict())

    def check_dependencies(self, config: TrainSettings, loaded: Mapping[str, Any]) -> None:
        """Check that the evaluator differs from the supervising encoder.

        Raises: ValueError if both compute the same.
        """
        if EVALUATOR in loaded and is_same_encoder(load_encoder(loaded[EVALUATOR]).build(), [loaded[ENCODER].build()]):
            raise ValueError(
                f"{EVALUATOR}={config.validation.evaluator}: is the encoder that supervises this run ({ENCODER}), "
                "so its scores are not independent; use another one, such as preset:identity-evaluator"
            )

    def needs_regions(self, config: FaceFusionConfig, *, synthetic: bool) -> bool:
        """Return whether the shards must hold face regions; paired training renders them."""
        return not (config.paired and synthetic)

    def collate(self, roles: Sequence[DecodedRows]) -> PairBatch:
        """Pair sources and targets."""
        source, target = roles
        return PairBatch.from_rows(source, target)

    def build(
        self, config: FaceFusionConfig, dataset: DatasetInfo, dependencies: Mapping[str, Any]
    ) -> FaceFusionRecipe:
        """Build generator and discriminator, with the supervising encoder."""
        view = crop_to_arcface_affine(dataset.template)
        return FaceFusionRecipe(
            config,
            identity_encoder=dependencies[ENCODER].build(),
            face_view_23=view,
            all_skin=dataset.skin_regions or not self.needs_regions(config, synthetic=dataset.synthetic),
        )

    def describe(self, recipe: FaceFusionRecipe) -> dict[str, Any]:
        """Return the config of the supervising encoder, which is exported too, and what the generator changes."""
        encoder = recipe.frozen["identity"].config
        assert isinstance(encoder, IdentityEncoderConfig)
        return {"identity_encoder": encoder.model_dump(mode="json"), ALL_SKIN: recipe.all_skin}

    def build_validator(
        self, config: TrainSettings, dependencies: Mapping[str, Any], held_out: HeldOutRows, device: torch.device
    ) -> PairValidator | None:
        """Build a validator with the metrics of `fusionray evaluate`, if `validation.evaluator` is set."""
        if EVALUATOR not in dependencies:
            return None
        evaluators = EvaluatorPaths(
            dependencies[EVALUATOR], dependencies.get(READER), features=None, with_landmarks=False
        )
        return PairValidator(config, evaluators, held_out, device)

    def dummy_batch(self, config: TrainSettings, count: int) -> PairBatch:
        """Draw noise as pairs, one of them marked as the same person, so that every loss applies."""
        source, target = noise_crops(config, count)
        return PairBatch(source, target, torch.arange(count) < 1)

    def inference_example(self, recipe: FaceFusionRecipe) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Return the fusion network and one pair, with the embedding of the source."""
        size = recipe.config.generator.size
        face = torch.zeros(1, 3, IDENTITY_SIZE, IDENTITY_SIZE)
        return recipe.networks["generator"], (face, torch.zeros(1, EMBEDDING_LENGTH), torch.zeros(1, 3, size, size))

    def export(self, checkpoint: str) -> BundleExport:
        """Export the EMA generator of a checkpoint and the encoder that supervised it.

        Raises: CheckpointMissing.
        """
        trained = load_fusion(checkpoint)
        skin = choose_skin(read_info(checkpoint).metadata.get(ALL_SKIN, True))
        return export_fusion(trained.network, trained.encoder, trained.config.data.template, skin)

    def export_recipe(self, recipe: FaceFusionRecipe, template: str) -> BundleExport:
        """Export the generator of a recipe in memory and its supervising encoder."""
        network, encoder = recipe.networks["generator"].eval(), recipe.frozen["identity"].eval()
        assert isinstance(network, FusionNetwork)
        assert isinstance(encoder, IdentityEncoder)
        return export_fusion(network, encoder, template, choose_skin(recipe.all_skin))


def choose_skin(all_skin: bool) -> Skin:
    """Choose whose skin fused faces have: of a head, the model changes all skin, or the middle of the face alone."""
    return "source" if all_skin else "target"


def settings_of(config: TrainSettings) -> FaceFusionConfig:
    """Return the face-fusion settings of a configuration."""
    assert isinstance(config.recipe, FaceFusionConfig)
    return config.recipe


register(FaceFusionFamily())
