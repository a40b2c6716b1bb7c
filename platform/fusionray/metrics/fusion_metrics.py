"""Metrics of fused pairs: each evaluator network runs on the fused picture and on the pictures to compare it with.

The results are *columns*: float32 arrays whose first axis counts the pairs, named `<metric>_<picture>`.

Shape suffixes: N pairs, C channels, H rows, W columns, E embedding length, F features, A attributes, K readings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fusionray.data.synthetic import IDENTITY_NAMES, attributes_in_crop, render_true_fusion
from fusionray.faces.face import Image
from fusionray.metrics.attribute_reader import AttributeReader
from fusionray.metrics.baselines import build_baselines
from fusionray.metrics.hard_cases import find_rendered_cases
from fusionray.metrics.landmarks import CropLandmarks, landmark_distance
from fusionray.metrics.similarity import feature_distance, gradient_energy, region_psnr, region_ssim
from fusionray.metrics.skin_parts import SkinParts, find_skin_parts, part_region
from fusionray.metrics.skin_steps import (
    SkinSteps,
    estimate_parts,
    measure_steps,
    measure_tone,
    measure_unchanged_share,
)
from fusionray.nets.identity import IdentityEncoder
from fusionray.nets.pixels import elliptic_region, to_float, to_uint8
from fusionray.types import PairBatch

MetricColumns = dict[str, NDArray[np.float32]]

# Upper limit of PSNR: that of rounding to eight bits, 10 log10(12 x 255^2). Equal pictures would have an infinite PSNR.
EIGHT_BITS_PSNR = 58.9
# Crops are reduced from larger pictures; a true fusion rendered at crop size would be sharper than any of them.
TRUTH_OVERSAMPLING = 2
# Parameters of the source person by which fairness metrics group people.
GROUPED_BY = ("skin_tone", "age")


class FusionModel(Protocol):
    """A face-fusion model under evaluation."""

    def fuse(self, source: Tensor, target: Tensor) -> Tensor:
        """Fuse crops, uint8 [N,3,S,S] RGB in and out, as the generator of the service does."""
        ...

    def embed(self, face: Tensor) -> Tensor:
        """Embed faces [N,3,112,112] in [-1,1] with the model's own encoder: [N,512] of unit length."""
        ...


@dataclass(frozen=True)
class Evaluators:
    """The evaluator networks, all frozen: `encoder` for identity, `reader` for attributes, `features` for FID and KID.

    `features` maps pictures in [-1,1] to [N,F]; without it, FID and KID use the encoder's embeddings.
    """

    encoder: IdentityEncoder
    reader: AttributeReader | None = None
    features: nn.Module | None = None
    landmarks: CropLandmarks | None = None


class FusionMetrics:
    """Compute the columns of pairs whose crops are aligned to one template.

    `face_crop` maps these crops to arcface_112 faces. It and the evaluators must be on `device`. With `compare_size`, a
    divisor of the crops' size, identity, similarity and attributes are measured on pictures that are reduced to it.
    """

    def __init__(
        self, evaluators: Evaluators, face_crop: nn.Module, device: torch.device, *, compare_size: int | None = None
    ) -> None:
        self.evaluators = evaluators
        self.face_crop = face_crop
        self.device = device
        self.compare_size = compare_size

    @torch.no_grad()
    def compute(self, model: FusionModel, batch: PairBatch, source_region_N1SS: Tensor | None = None) -> MetricColumns:
        """Fuse a batch and measure the result; columns that need a true fusion are left out if there is none.

        `batch.region` and `source_region_N1SS`, of photographs, must be all visible skin of target and source, or None.
        """
        batch = batch.to(self.device)
        fused = model.fuse(batch.source, batch.target)
        crops = {"fused": fused, "source": batch.source, "target": batch.target}
        pictures = {name: self.reduce(crop) for name, crop in crops.items()}
        columns: dict[str, Tensor] = {}
        if batch.truth is not None:
            truth, region = render_true_fusion(batch, TRUTH_OVERSAMPLING)
            # Fused pictures have eight bits per channel, so the true fusion is rounded to eight bits too.
            crops["truth"] = to_uint8(truth)
            pictures["truth"] = self.reduce(crops["truth"])
            region = nn.functional.adaptive_avg_pool2d(region, pictures["truth"].shape[-1])
            columns |= self.compare_to_truth(pictures, region)
            columns |= {name: batch.truth.source_identity[:, IDENTITY_NAMES.index(name)] for name in GROUPED_BY}
            columns |= find_rendered_cases(batch.truth)
            if self.evaluators.reader is not None:
                true_NA = attributes_in_crop(batch.truth.target_attributes, batch.truth.view)
                columns |= self.read_attributes(self.evaluators.reader, pictures, true_NA)
        columns["light_target"] = pictures["target"].mean(dim=(1, 2, 3))
        columns["detail_target"] = gradient_energy(pictures["target"], elliptic_region(pictures["target"]))
        for name, picture in pictures.items():
            columns |= {f"{what}_{name}": value for what, value in self.embed(picture).items()}
        measured = {name: value.float().cpu().numpy() for name, value in columns.items()}
        source_skin = None if source_region_N1SS is None else part_region(source_region_N1SS)
        measured |= measure_skin(crops, find_skin_parts(batch), source_skin)
        if self.evaluators.landmarks is not None:
            measured |= measure_landmarks(self.evaluators.landmarks, fused, batch.target)
        return measured

    @torch.no_grad()
    def embed_crops(self, image_N3HW: Tensor) -> MetricColumns:
        """Embed real crops uint8 [N,3,H,W]: column `embedding`, and `features` if there is a feature network."""
        embedded = self.embed(self.reduce(image_N3HW.to(self.device)))
        return {what: value.float().cpu().numpy() for what, value in embedded.items()}

    def reduce(self, image_N3HW: Tensor) -> Tensor:
        """Return crops uint8 as pictures in [-1,1], averaged down to the size at which they are compared."""
        picture = to_float(image_N3HW)
        if self.compare_size in (None, picture.shape[-1]):
            return picture
        # Rounded as a smaller model's pictures are.
        return to_float(to_uint8(nn.functional.adaptive_avg_pool2d(picture, self.compare_size)))

    def embed(self, picture: Tensor) -> dict[str, Tensor]:
        """Return the `embedding` [N,E] of pictures, and their `features` [N,F] if there is a feature network."""
        embedded: dict[str, Tensor] = {"embedding": self.evaluators.encoder(self.face_crop(picture))}
        if self.evaluators.features is not None:
            embedded["features"] = self.evaluators.features(picture)
        return embedded

    def compare_to_truth(self, pictures: Mapping[str, Tensor], region_N1HW: Tensor) -> dict[str, Tensor]:
        """Compare the fused picture, and the baselines without a model, with the true fusion: [N] each."""
        truth = pictures["truth"]
        candidates = {"fused": pictures["fused"], **build_baselines(pictures["source"], pictures["target"])}
        truth_features = self.evaluators.encoder.features(self.face_crop(truth))
        compared: dict[str, Tensor] = {}
        for name, picture in candidates.items():
            compared[f"ssim_{name}"] = region_ssim(picture, truth, region_N1HW)
            compared[f"psnr_{name}"] = region_psnr(picture, truth, region_N1HW).clamp(max=EIGHT_BITS_PSNR)
            features = self.evaluators.encoder.features(self.face_crop(picture))
            compared[f"feature_distance_{name}"] = feature_distance(features, truth_features)
        for name in ("fused", "truth"):
            compared[f"gradient_energy_{name}"] = gradient_energy(pictures[name], region_N1HW)
        return compared

    def read_attributes(
        self, reader: AttributeReader, pictures: Mapping[str, Tensor], true_NA: Tensor
    ) -> dict[str, Tensor]:
        """Return the errors [N] of the attributes read from fused pictures, from true fusions and from targets."""
        true_NK = reader.select(true_NA)
        return {
            f"{group}_error_{name}": error_N
            for name in ("fused", "truth", "target")
            for group, error_N in reader.measure_errors(reader(self.face_crop(pictures[name])), true_NK).items()
        }


def measure_landmarks(landmarks: CropLandmarks, fused: Tensor, target: Tensor) -> MetricColumns:
    """Compare landmarks of fused and target crops uint8 [N,3,H,W]; nan where the mesh finds no face in the target."""
    fused_N52, target_N52 = (landmarks.locate(to_rows(image)) for image in (fused, target))
    missing_N = np.isnan(fused_N52[:, 0, 0]).astype(np.float32)
    missing_N[np.isnan(target_N52[:, 0, 0])] = np.nan
    distance_N = landmark_distance(fused_N52, target_N52).astype(np.float32)
    return {"landmark_distance": distance_N, "face_not_found": missing_N}


def measure_skin(
    crops: Mapping[str, Tensor], skin: Sequence[SkinParts] | None, source_skin: Sequence[SkinParts] | None = None
) -> MetricColumns:
    """Measure the colour steps around fused faces, around those of true fusions if there are any, and of sources whose
    own skin is known; the skin that fused pictures leave unchanged, and the tones of sources and targets.

    Crops are uint8 [N,3,H,W]; float32 [N] by column, such as `skin_step_fused` and `skin_step_fused_target`, which is
    the target's at the same places.
    """
    rows = {name: to_rows(crop) for name, crop in crops.items()}
    measured = {f"tone_{name}": [measure_tone(crop) for crop in rows[name]] for name in ("source", "target")}
    steps = {} if source_skin is None else {"source": steps_of(rows["source"], source_skin)}
    for name in rows.keys() & {"fused", "truth"}:
        parts = skin or [estimate_parts(*row) for row in zip(rows[name], rows["target"], strict=True)]
        steps |= {name: steps_of(rows[name], parts), f"{name}_target": steps_of(rows["target"], parts)}
    for name, found in steps.items():
        measured |= {
            f"skin_step_{name}": [each.whole for each in found],
            f"edge_step_{name}": [each.edge for each in found],
        }
    if "truth" in rows and skin is not None:
        measured["unchanged_skin_share"] = [
            measure_unchanged_share(*row)
            for row in zip(rows["fused"], rows["target"], rows["truth"], skin, strict=True)
        ]
    return {name: np.array(values, np.float32) for name, values in measured.items()}


def steps_of(rows: Iterable[Image], skin: Iterable[SkinParts]) -> list[SkinSteps]:
    return [measure_steps(*row) for row in zip(rows, skin, strict=True)]


def to_rows(image_N3HW: Tensor) -> NDArray[np.uint8]:
    """Return crops as [N,H,W,3] on the CPU."""
    rows: NDArray[np.uint8] = image_N3HW.permute(0, 2, 3, 1).cpu().numpy()
    return rows


def join(parts: Iterable[MetricColumns]) -> MetricColumns:
    """Concatenate the columns of several batches; scores that only some of them have are nan in the others."""
    collected = [part for part in parts if part]
    samples = {name: column for part in collected for name, column in part.items()}

    def find(part: MetricColumns, name: str) -> NDArray[np.float32]:
        if name in part:
            return part[name]
        length = len(next(iter(part.values())))
        return np.full((length, *samples[name].shape[1:]), np.nan, np.float32)

    return {name: np.concatenate([find(part, name) for part in collected]) for name in samples}
