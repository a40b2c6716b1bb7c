"""A model from pictures to a picture as it is evaluated: with torch, or as an exported bundle.

Shape suffixes: N pictures, S side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fusionray.bundle.bundle import Bundle, bundle_hash, read_bundle
from fusionray.checkpoint.info import read_info
from fusionray.checkpoint.models import read_stored_config
from fusionray.errors import BundleInvalid
from fusionray.evaluation.fusion_model import FusionModelInfo, is_bundle
from fusionray.nets.pixels import to_float, to_uint8
from fusionray.recipes.family import RecipeFamily
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.tasks import open_runner


class PictureModel(Protocol):
    """A model under test."""

    def make(self, pictures: Sequence[Tensor]) -> Tensor:
        """Make pictures, uint8 [N,3,S,S] RGB in each role and out, as a service would."""
        ...


class TorchPictureModel:
    """The EMA networks of a checkpoint."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self.network = network.to(device)
        self.device = device

    @torch.no_grad()
    def make(self, pictures: Sequence[Tensor]) -> Tensor:
        """Make pictures, uint8 [N,3,S,S]."""
        made: Tensor = self.network(*(to_float(picture.to(self.device)) for picture in pictures))
        return to_uint8(made).cpu()


class BundlePictureModel:
    """A bundle as the service runs it, its inputs in the order in which the model takes them.

    Raises: BundleInvalid if it takes another number of pictures than its family gives; ProviderUnavailable.
    """

    def __init__(self, bundle: Bundle, num_roles: int, settings: RuntimeConfig | None = None) -> None:
        self.runner = open_runner(bundle, settings)
        if len(self.runner.inputs) != num_roles:
            raise BundleInvalid(
                f"{bundle.folder}: takes {', '.join(self.runner.inputs)}, but its recipe has {num_roles} "
                "input picture(s); export it again"
            )

    def make(self, pictures: Sequence[Tensor]) -> Tensor:
        """Make pictures, uint8 [N,3,S,S]."""
        roles = [picture.permute(0, 2, 3, 1).numpy() for picture in pictures]
        rows = zip(*roles, strict=True)
        made = [self.runner.run(dict(zip(self.runner.inputs, row, strict=True))) for row in rows]
        return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).contiguous()


def open_picture_model(
    location: str, family: RecipeFamily[Any], tracking_uri: str, device: torch.device
) -> tuple[PictureModel, FusionModelInfo]:
    """Load a model from a location that `resolve_model` returned.

    Raises: BundleInvalid, CheckpointMissing, ProviderUnavailable; ConfigInvalid if the family has no such model.
    """
    if is_bundle(location):
        bundle = read_bundle(location, tracking_uri)
        described = bundle.description
        digest, learned = bundle_hash(bundle), described.lineage.data_manifest
        facts = FusionModelInfo(described.name, described.size, described.template, digest, learned)
        return BundlePictureModel(bundle, family.num_roles), facts
    info = read_info(location)
    config = read_stored_config(location, info)
    facts = FusionModelInfo(
        config.run.name, config.data.size, config.data.template, info.table_sha256, info.data_digest
    )
    return TorchPictureModel(family.load_model(location), device), facts
