"""The user's feature network for FID and KID, and a check whether two encoders compute the same."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fusionray.config import Section, in_unit
from fusionray.errors import InputMissing
from fusionray.nets.identity import IDENTITY_SIZE
from fusionray.storage import filesystem as storage

# Largest difference of embeddings that counts as rounding; those of two trained encoders differ far more.
ROUNDING = 1e-3
NUM_PROBES = 4


class FeaturesConfig(Section):
    """The user's feature network for FID and KID."""

    file: str = Field(
        description="TorchScript file that maps pictures [N,3,H,W] to features [N,F]; Inception gives the usual FID."
    )
    low: float = Field(0.0, description="Value of black that the network expects.", json_schema_extra=in_unit(""))
    high: float = Field(1.0, description="Value of white that the network expects.", json_schema_extra=in_unit(""))
    size: int | None = Field(None, ge=8, description="Side to which pictures are resized; null: not resized.")


class FeatureNetwork(nn.Module):
    """A TorchScript network from a file of the user, which maps pictures to features.

    Raises: InputMissing if the file does not exist, or is not TorchScript.
    """

    def __init__(self, config: FeaturesConfig) -> None:
        super().__init__()
        self.config = config
        try:
            content = io.BytesIO(storage.read_bytes(config.file))
            with warnings.catch_warnings():
                # Torch deprecates TorchScript, but Inception networks for FID are distributed in it.
                warnings.simplefilter("ignore", DeprecationWarning)
                # TorchScript is an archive of code and tensors: unlike a pickle it runs no Python.
                self.network = torch.jit.load(content, map_location="cpu").eval()  # type: ignore[no-untyped-call]
        except (OSError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputMissing(
                f"face_fusion.features.file={config.file}: cannot be read as TorchScript ({reason}); save it with "
                "torch.jit.save"
            ) from None

    def forward(self, picture: Tensor) -> Tensor:
        """Map pictures [N,3,H,W] in [-1,1] to features [N,F]."""
        config = self.config
        scaled = config.low + (picture + 1) / 2 * (config.high - config.low)
        if config.size is not None and config.size != picture.shape[-1]:
            scaled = F.interpolate(scaled, size=config.size, mode="bilinear", antialias=True)
        features: Tensor = self.network(scaled)
        if features.ndim != 2 or len(features) != len(picture):
            raise InputMissing(
                f"face_fusion.features.file={config.file}: returns {list(features.shape)} for {len(picture)} pictures; "
                "it must return [N,F]"
            )
        return features


def is_same_encoder(encoder: nn.Module, others: Iterable[Callable[[Tensor], Tensor]]) -> bool:
    """Return whether an encoder computes the same embeddings as one of `others`, whatever file each comes from.

    All take faces [N,3,112,112] in [-1,1].
    """
    generator = torch.Generator().manual_seed(0)
    probe = torch.rand((NUM_PROBES, 3, IDENTITY_SIZE, IDENTITY_SIZE), generator=generator) * 2 - 1
    with torch.no_grad():
        embedding_NE = encoder(probe)
        return any(bool((embed(probe) - embedding_NE).abs().max() < ROUNDING) for embed in others)
