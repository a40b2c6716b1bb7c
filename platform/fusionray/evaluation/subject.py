"""What is evaluated: anything that fuses aligned crops, with torch or as an exported bundle.

Shape suffixes: N batch, C channels, H rows, W columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fusionray.data import storage
from fusionray.evaluation.meter import Subject
from fusionray.export.bundle import (
    DESCRIPTION_NAME,
    EMBEDDING_LENGTH,
    GENERATOR_NAME,
    IDENTITY_NAME,
    Bundle,
    TensorDescription,
    bundle_hash,
    read_bundle,
)
from fusionray.nets.generator import Fused
from fusionray.ops.environment import resolve_location
from fusionray.recipes.identity import FaceWindow
from fusionray.recipes.recipe import to_float, to_uint8
from fusionray.runtime.engine import open_engine
from fusionray.runtime.face_reader import normalize_source
from fusionray.runtime.pixels import denormalize_crops
from fusionray.runtime.settings import RuntimeSettings
from fusionray.runtime.signature import check_generator, check_identity
from fusionray.training.build import face_view, load_fusion
from fusionray.training.checkpoint.info import find_checkpoint

REGISTRY_PREFIX = "models:/"


@dataclass(frozen=True)
class SubjectFacts:
    """What a model says of itself; `digest` identifies it, `data_digest` the shards that it learned from."""

    name: str
    size: int
    template: str
    digest: str
    data_digest: str


class TorchSubject:
    """A generator and what tells it who the source is."""

    def __init__(self, generator: nn.Module, reader: nn.Module, window: nn.Module) -> None:
        self.generator = generator
        self.reader = reader
        self.window = window

    @torch.no_grad()
    def fuse(self, source: Tensor, target: Tensor) -> Tensor:
        """Fuse crops, uint8 [N,3,S,S] RGB in and out."""
        fused: Fused = self.generator(self.reader(self.window(to_float(source))), to_float(target))
        return to_uint8(fused.output)

    @torch.no_grad()
    def embed(self, face: Tensor) -> Tensor:
        """Embed faces [N,3,112,112] in [-1,1], [N,512] of unit length."""
        source: Tensor = self.reader(face)
        return source[:, :EMBEDDING_LENGTH]


class BundleSubject:
    """The two models of a bundle on ONNX Runtime, fed with crops that are aligned already.

    Raises: BundleInvalid if the models are not of the kind that the runtime drives; ProviderUnavailable.
    """

    def __init__(self, bundle: Bundle, window: nn.Module, threads: int | None = None) -> None:
        settings = RuntimeSettings(threads=threads)
        self.generator = open_engine(bundle.generator_path, settings)
        self.identity = open_engine(bundle.identity_path, settings)
        check_generator(bundle, self.generator)
        check_identity(bundle, self.identity)
        self.window = window
        self.face_range = bundle.tensor(IDENTITY_NAME, "input")
        self.target_range = bundle.tensor(GENERATOR_NAME, "target")
        self.output_range = bundle.tensor(GENERATOR_NAME, "output")

    @torch.no_grad()
    def fuse(self, source: Tensor, target: Tensor) -> Tensor:
        """Fuse crops, uint8 [N,3,S,S] RGB in and out."""
        source_NL = self.read(self.window(to_float(source)))
        inputs = {"source": source_NL, "target": rescale(to_float(target), self.target_range)}
        (output,) = self.generator.run(["output"], inputs)
        pixels_NHWC = denormalize_crops(output, self.output_range)
        return torch.from_numpy(pixels_NHWC).permute(0, 3, 1, 2).contiguous().to(target.device)

    @torch.no_grad()
    def embed(self, face: Tensor) -> Tensor:
        """Embed faces [N,3,112,112] in [-1,1], [N,512] of unit length."""
        return torch.from_numpy(self.read(face)[:, :EMBEDDING_LENGTH]).to(face.device)

    def read(self, face: Tensor) -> NDArray[np.float32]:
        """Read source faces as what the generator takes, [N,L]."""
        (source_NL,) = self.identity.run(["source"], {"input": rescale(face, self.face_range)})
        return normalize_source(source_NL)


def rescale(image_NCHW: Tensor, described: TensorDescription) -> NDArray[np.float32]:
    """Map pictures in [-1,1] to the range that a bundle describes."""
    half = (described.maximum - described.minimum) / 2
    scaled: NDArray[np.float32] = ((image_NCHW.float() + 1) * half + described.minimum).cpu().numpy()
    return scaled


def resolve_model(location: str) -> str:
    """Turn what a user names into what every worker finds: a bundle, or one checkpoint of a run that may go on.

    Raises: CheckpointMissing.
    """
    if location.startswith(REGISTRY_PREFIX):
        return location
    folder = resolve_location(location)
    return folder if is_bundle(folder) else find_checkpoint(folder)


def is_bundle(location: str) -> bool:
    """Tell whether a place is a bundle; else it should be a checkpoint."""
    return location.startswith(REGISTRY_PREFIX) or storage.exists(storage.join(location, DESCRIPTION_NAME))


def open_subject(
    location: str, *, tracking_uri: str | None, device: torch.device, threads: int | None = None
) -> tuple[Subject, SubjectFacts]:
    """Load a model from a place that `resolve_model` gave.

    Raises: BundleInvalid, CheckpointMissing, ProviderUnavailable.
    """
    if is_bundle(location):
        bundle = read_bundle(location, tracking_uri)
        described = bundle.description
        window = FaceWindow(face_view(described.template)).to(device)
        return BundleSubject(bundle, window, threads), SubjectFacts(
            described.name,
            described.size,
            described.template,
            bundle_hash(bundle),
            described.lineage.data_manifest,
        )
    trained = load_fusion(location)
    data = trained.config.data
    window = FaceWindow(face_view(data.template)).to(device)
    subject = TorchSubject(trained.generator.to(device), trained.reader.to(device), window)
    return subject, SubjectFacts(
        trained.config.run.name, data.size, data.template, trained.info.table_sha256, trained.info.data_digest
    )
