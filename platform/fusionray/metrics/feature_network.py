"""A network of the user's in whose features pictures are compared, and how two networks are told apart."""

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

# A network equals itself but for rounding, on whatever it runs; two trained ones lie far apart.
ROUNDING = 1e-3
NUM_PROBES = 4


class FeaturesConfig(Section):
    """A feature network of the user's, for FID and KID."""

    file: str = Field(
        description="TorchScript file that maps pictures [N,3,H,W] to features [N,F]; Inception gives the usual FID."
    )
    low: float = Field(0.0, description="Value of black that the network expects.", json_schema_extra=in_unit(""))
    high: float = Field(1.0, description="Value of white that the network expects.", json_schema_extra=in_unit(""))
    size: int | None = Field(None, ge=8, description="Side to which pictures are resized; null: not resized.")


class FeatureNetwork(nn.Module):
    """A TorchScript network of the user's that maps pictures to features.

    Raises: InputMissing if its file is not there, or is none.
    """

    def __init__(self, config: FeaturesConfig) -> None:
        super().__init__()
        self.config = config
        try:
            content = io.BytesIO(storage.read_bytes(config.file))
            with warnings.catch_warnings():
                # Torch advises another format for new networks; Inception and its like are passed on in this one.
                warnings.simplefilter("ignore", DeprecationWarning)
                # An archive of code and tensors, not a pickle: nothing but the network itself can run.
                self.network = torch.jit.load(content, map_location="cpu").eval()  # type: ignore[no-untyped-call]
        except (OSError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputMissing(
                f"features.file={config.file}: cannot be read as TorchScript ({reason}); save it with torch.jit.save"
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
                f"features.file={config.file}: gives {list(features.shape)} for {len(picture)} pictures, not [N,F]"
            )
        return features


def is_same(encoder: nn.Module, others: Iterable[Callable[[Tensor], Tensor]]) -> bool:
    """Return whether an encoder computes the same as one of `others`: equal weights, whatever their file."""
    drawn = torch.Generator().manual_seed(0)
    probe = torch.rand((NUM_PROBES, 3, IDENTITY_SIZE, IDENTITY_SIZE), generator=drawn) * 2 - 1
    with torch.no_grad():
        wanted = encoder(probe)
        return any(bool((embed(probe) - wanted).abs().max() < ROUNDING) for embed in others)
