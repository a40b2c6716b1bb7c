"""Face-fusion models behind one interface for evaluation: a checkpoint run by torch, or an exported bundle.

Shape suffixes: N batch, C channels, H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fusionray.bundle.bundle import Bundle, bundle_hash, read_bundle
from fusionray.bundle.description import DESCRIPTION_NAME, EMBEDDING_LENGTH
from fusionray.checkpoint.info import find_checkpoint
from fusionray.checkpoint.models import load_fusion
from fusionray.environment import REGISTRY_PREFIX, resolve_location
from fusionray.errors import BundleInvalid
from fusionray.faces.blending.skin import match_skin
from fusionray.metrics.fusion_metrics import FusionModel
from fusionray.nets.generator import GeneratorOutput
from fusionray.nets.pixels import to_float, to_uint8
from fusionray.recipes.arcface_crop import ArcFaceCrop, crop_to_arcface_affine
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.crop_fuser import CropFuser
from fusionray.runtime.pixels import value_range
from fusionray.runtime.source_encoding import EmbeddingSourceEncoder, normalize_source
from fusionray.storage import filesystem as storage


@dataclass(frozen=True)
class ModelInfo:
    """Metadata of a model under evaluation; `digest` identifies it, `data_digest` the shards that it was trained on.

    `training`: the resolved configuration of its training; empty if it is unknown. `seconds`, `images`: how long it was
    trained, and on how many images; None for a bundle, which does not hold it.
    """

    name: str
    size: int
    template: str
    digest: str
    data_digest: str
    training: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    images: int | None = None


class TorchFusionModel:
    """A generator and the network that turns source faces into its condition, both of a checkpoint."""

    def __init__(self, generator: nn.Module, reader: nn.Module, face_crop: nn.Module) -> None:
        self.generator = generator
        self.reader = reader
        self.face_crop = face_crop

    @torch.no_grad()
    def fuse(self, source: Tensor, target: Tensor) -> Tensor:
        """Fuse crops, uint8 [N,3,S,S] RGB in and out."""
        fused: GeneratorOutput = self.generator(self.reader(self.face_crop(to_float(source))), to_float(target))
        return to_uint8(fused.output)

    @torch.no_grad()
    def embed(self, face: Tensor) -> Tensor:
        """Embed faces [N,3,112,112] in [-1,1], [N,512] of unit length."""
        source: Tensor = self.reader(face)
        return source[:, :EMBEDDING_LENGTH]


class BundleFusionModel:
    """The generator and the identity encoder of a bundle on ONNX Runtime, for aligned crops.

    Raises: BundleInvalid if the models do not match the bundle's description, or the generator takes source pictures;
        ProviderUnavailable.
    """

    def __init__(self, bundle: Bundle, face_crop: nn.Module, threads: int | None = None) -> None:
        if bundle.description.source_is_picture:
            raise BundleInvalid(
                f"{bundle.folder}: its generator takes the source as a picture; an evaluation needs the bundle's "
                "identity encoder, and this bundle has none"
            )
        settings = RuntimeConfig(threads=threads)
        self.skin = bundle.description.skin
        self.generator = CropFuser(bundle, settings)
        self.reader = EmbeddingSourceEncoder(bundle, settings)
        self.face_crop = face_crop

    @torch.no_grad()
    def fuse(self, source: Tensor, target: Tensor) -> Tensor:
        """Fuse crops, uint8 [N,3,S,S] RGB in and out."""
        crops_NHWC = target.permute(0, 2, 3, 1).cpu().numpy()
        fused = self.generator.fuse(self.reader.forward(self.rescale(self.face_crop(to_float(source)))), crops_NHWC)
        # With the skin that the service gives them, too.
        rows = zip(fused.crops, crops_NHWC, fused.masks, strict=True)
        coloured_NHWC = np.stack([match_skin(crop, own, mask, self.skin) for crop, own, mask in rows])
        return torch.from_numpy(coloured_NHWC).permute(0, 3, 1, 2).contiguous().to(target.device)

    @torch.no_grad()
    def embed(self, face: Tensor) -> Tensor:
        """Embed faces [N,3,112,112] in [-1,1], [N,512] of unit length."""
        source_NE = normalize_source(self.reader.embed(self.rescale(face)))
        return torch.from_numpy(source_NE[:, :EMBEDDING_LENGTH]).to(face.device)

    def rescale(self, image_NCHW: Tensor) -> NDArray[np.float32]:
        """Map RGB pictures in [-1,1] to the value range and channel order of the encoder's input."""
        black_C11, span_C11 = value_range(self.reader.crop_range)
        ordered = image_NCHW.flip(1) if self.reader.crop_range.order == "bgr" else image_NCHW
        return np.asarray((ordered.float() + 1).cpu().numpy() * (span_C11 / 2) + black_C11, np.float32)


def resolve_model(location: str) -> str:
    """Resolve a user's location to one that every worker can read: a bundle, or the newest checkpoint of a run.

    Raises: CheckpointMissing.
    """
    if location.startswith(REGISTRY_PREFIX):
        return location
    folder = resolve_location(location)
    return folder if is_bundle(folder) else find_checkpoint(folder)


def is_bundle(location: str) -> bool:
    """Return whether a location is a bundle; otherwise it should be a checkpoint."""
    return location.startswith(REGISTRY_PREFIX) or storage.exists(storage.join(location, DESCRIPTION_NAME))


def open_fusion_model(
    location: str, *, tracking_uri: str | None, device: torch.device, threads: int | None = None
) -> tuple[FusionModel, ModelInfo]:
    """Load a model from a location that `resolve_model` returned.

    Raises: BundleInvalid, CheckpointMissing, ProviderUnavailable.
    """
    if is_bundle(location):
        bundle = read_bundle(location, tracking_uri)
        description = bundle.description
        to_face = crop_to_arcface_affine(description.template, description.identity_template)
        face_crop = ArcFaceCrop(to_face).to(device)
        return BundleFusionModel(bundle, face_crop, threads), ModelInfo(
            description.name,
            description.size,
            description.template,
            bundle_hash(bundle),
            description.lineage.data_manifest,
            description.lineage.config,
        )
    trained = load_fusion(location)
    data = trained.config.data
    face_crop = ArcFaceCrop(crop_to_arcface_affine(data.template)).to(device)
    model = TorchFusionModel(trained.generator.to(device), trained.reader.to(device), face_crop)
    return model, ModelInfo(
        trained.config.run.name,
        data.size,
        data.template,
        trained.info.table_sha256,
        trained.info.data_digest,
        trained.info.config,
        trained.info.seconds,
        trained.info.images_seen,
    )
