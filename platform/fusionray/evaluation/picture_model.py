"""Image-to-image models behind one interface for evaluation: a checkpoint run by torch, or an exported bundle.

Shape suffixes: N pictures, S side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fusionray.bundle.bundle import Bundle, bundle_hash, read_bundle
from fusionray.bundle.description import FACE_FUSION
from fusionray.checkpoint.info import read_info
from fusionray.checkpoint.models import read_stored_config
from fusionray.errors import BundleInvalid
from fusionray.evaluation.fusion_model import ModelInfo, is_bundle
from fusionray.nets.pixels import to_float, to_uint8
from fusionray.recipes.family import RecipeFamily
from fusionray.recipes.registry import find_family
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.tasks import open_runner


class PictureModel(Protocol):
    """A model under evaluation."""

    def run(self, pictures: Sequence[Tensor]) -> Tensor:
        """Map one tensor uint8 [N,3,S,S] RGB for each role to the output, uint8 [N,3,S,S], as the service does."""
        ...


class TorchPictureModel:
    """The EMA networks of a checkpoint."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self.network = network.to(device)
        self.device = device

    @torch.no_grad()
    def run(self, pictures: Sequence[Tensor]) -> Tensor:
        """Run the network; uint8 [N,3,S,S] in and out."""
        output: Tensor = self.network(*(to_float(picture.to(self.device)) for picture in pictures))
        return to_uint8(output).cpu()


class BundlePictureModel:
    """A bundle as the service runs it; `inputs`: names of its pictures in the order of the family's roles.

    Raises: BundleInvalid if the bundle takes other pictures than its family has roles; ProviderUnavailable.
    """

    def __init__(
        self, bundle: Bundle, num_roles: int, settings: RuntimeConfig | None = None, *, inputs: tuple[str, ...] = ()
    ) -> None:
        self.runner = open_runner(bundle, settings)
        self.inputs = inputs or tuple(self.runner.inputs)
        if len(self.inputs) != num_roles or set(self.inputs) != set(self.runner.inputs):
            raise BundleInvalid(
                f"{bundle.folder}: takes {', '.join(self.runner.inputs)}, but its recipe has {num_roles} "
                "input picture(s); export it again"
            )

    def run(self, pictures: Sequence[Tensor]) -> Tensor:
        """Run the bundle row by row; uint8 [N,3,S,S] in and out."""
        roles = [picture.permute(0, 2, 3, 1).numpy() for picture in pictures]
        rows = zip(*roles, strict=True)
        outputs = [self.runner.run(dict(zip(self.inputs, row, strict=True))) for row in rows]
        return torch.from_numpy(np.stack(outputs)).permute(0, 3, 1, 2).contiguous()


def open_picture_model(
    location: str, family: RecipeFamily[Any], tracking_uri: str, device: torch.device
) -> tuple[PictureModel, ModelInfo]:
    """Load a model from a location that `resolve_model` returned.

    Raises: BundleInvalid, CheckpointMissing, ProviderUnavailable; ConfigInvalid if the family has no such model.
    """
    if is_bundle(location):
        bundle = read_bundle(location, tracking_uri)
        description = bundle.description
        digest, data_digest = bundle_hash(bundle), description.lineage.data_manifest
        info = ModelInfo(description.name, description.size, description.template, digest, data_digest)
        return BundlePictureModel(bundle, family.num_roles, inputs=family.runner_inputs), info
    stored = read_info(location)
    config = read_stored_config(location, stored)
    info = ModelInfo(
        config.run.name,
        config.data.size,
        config.data.template,
        stored.table_sha256,
        stored.data_digest,
        seconds=stored.seconds,
        images=stored.images_seen,
    )
    return TorchPictureModel(family.load_model(location), device), info


def find_model_family(location: str, tracking_uri: str) -> RecipeFamily[Any]:
    """Find the family of a model, at a location that `resolve_model` returned, by its training configuration.

    Raises: ConfigInvalid if the family is unknown; BundleInvalid, CheckpointMissing.
    """
    if not is_bundle(location):
        return find_family(read_stored_config(location, read_info(location)).recipe.name)
    description = read_bundle(location, tracking_uri).description
    # Imported models fuse faces, and have no training configuration.
    if description.task == FACE_FUSION:
        return find_family(FACE_FUSION)
    try:
        return find_family(description.lineage.config["recipe"]["name"])
    except (KeyError, TypeError):
        raise BundleInvalid(f"{location}: does not say which recipe trained it; evaluate its run instead") from None
