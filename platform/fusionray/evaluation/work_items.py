"""The work items of an evaluation: a worker gets encoded crops and returns columns of numbers. Does not import Ray."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import cv2
import numpy as np
import torch

from fusionray.checkpoint.evaluators import EvaluatorPaths
from fusionray.data.decoding import CropDecoder, collate_pairs, decode_source_regions
from fusionray.data.pairs import EncodedCrop, SampledPairs
from fusionray.evaluation.clips import Clip
from fusionray.evaluation.dataset import EvalDataset, compact
from fusionray.evaluation.fusion_model import open_fusion_model
from fusionray.faces.align import load_template
from fusionray.hardware.affinity import set_thread_counts
from fusionray.metrics.fusion_metrics import FusionMetrics, MetricColumns, join
from fusionray.metrics.landmarks import CropLandmarks, eye_distance, landmark_acceleration
from fusionray.metrics.pair_plan import RowIndices
from fusionray.metrics.temporal import flicker, identity_jump, warp_error
from fusionray.nets.pixels import to_float
from fusionray.recipes.arcface_crop import ArcFaceCrop, crop_to_arcface_affine

ItemKind = Literal["pairs", "crops", "clips"]

LEVELS = 255.0


@dataclass(frozen=True)
class EvalSpec:
    """The settings from which a worker builds its EvalContext."""

    model: str
    tracking_uri: str | None
    evaluators: EvaluatorPaths
    template: str
    size: int
    batch_size: int
    num_workers: int
    threads: int | None
    use_gpu: bool
    compare_size: int | None = None


class EvalContext:
    """A loaded model and its evaluators, on the device of this process."""

    def __init__(self, spec: EvalSpec) -> None:
        threads = spec.threads or max(1, len(os.sched_getaffinity(0)) // spec.num_workers)
        set_thread_counts(threads)
        cv2.setNumThreads(threads)
        self.spec = spec
        self.device = torch.device("cuda" if spec.use_gpu else "cpu")
        self.model, _ = open_fusion_model(
            spec.model, tracking_uri=spec.tracking_uri, device=self.device, threads=threads
        )
        face_crop = ArcFaceCrop(crop_to_arcface_affine(spec.template)).to(self.device)
        evaluators = spec.evaluators.build(self.device, template=spec.template, size=spec.size)
        self.metrics = FusionMetrics(evaluators, face_crop, self.device, compare_size=spec.compare_size)
        self.decoder = CropDecoder(spec.size, threads)


class WorkItem(Protocol):
    """A part of the evaluation that one worker measures in one call."""

    @property
    def kind(self) -> ItemKind:
        """Return the table that the columns belong to."""
        ...

    @property
    def numbers(self) -> RowIndices:
        """Return the index of each measured pair, crop or clip in its list."""
        ...

    def measure(self, context: EvalContext) -> MetricColumns:
        """Return the columns; their rows are in the order of `numbers`."""
        ...


@dataclass(frozen=True, eq=False)
class PairItem:
    """Pairs to fuse and measure."""

    numbers: RowIndices
    draws: SampledPairs
    kind: ItemKind = "pairs"

    def measure(self, context: EvalContext) -> MetricColumns:
        """Fuse and measure the pairs."""
        batch = collate_pairs([self.draws], context.decoder)
        return context.metrics.compute(context.model, batch, decode_source_regions(self.draws, context.decoder))


@dataclass(frozen=True, eq=False)
class CropItem:
    """Real crops to embed, such as those of the gallery."""

    numbers: RowIndices
    draws: SampledPairs
    kind: ItemKind = "crops"

    def measure(self, context: EvalContext) -> MetricColumns:
        """Embed each crop."""
        crops = self.draws.crops.select(self.draws.indices[:, 0])
        return context.metrics.embed_crops(context.decoder.decode(crops))


@dataclass(frozen=True, eq=False)
class ClipItem:
    """A clip to fuse with one source."""

    numbers: RowIndices
    clip: Clip
    source: EncodedCrop
    kind: ItemKind = "clips"

    def measure(self, context: EvalContext) -> MetricColumns:
        """Fuse each frame on its own, as for a video, and measure how stable the result is; one row."""
        frames = self.clip.load(load_template(context.spec.template), context.spec.size)
        source = context.decoder.decode([self.source])
        fused = torch.cat(
            [
                context.model.fuse(
                    source.expand(len(part), -1, -1, -1).to(context.device), part.to(context.device)
                ).cpu()
                for part in torch.split(frames.target, context.spec.batch_size)
            ]
        )
        target = to_float(frames.target)
        clips = {"fused": fused} | ({} if frames.truth is None else {"truth": frames.truth})
        measured = {"identity_jump_target": self.measure_jump(context, frames.target)}
        measured |= measure_accelerations(context.metrics.evaluators.landmarks, {**clips, "target": frames.target})
        for name, clip in clips.items():
            suffix = "" if name == "fused" else f"_{name}"
            measured[f"flicker{suffix}"] = LEVELS * flicker(target, to_float(clip))
            error = warp_error(target, to_float(clip))
            measured[f"warp_error{suffix}"] = error.fused
            measured["warp_error_target"] = error.target
            measured[f"identity_jump{suffix}"] = self.measure_jump(context, clip)
        return {name: np.array([value], np.float32) for name, value in measured.items()}

    def measure_jump(self, context: EvalContext, clip: torch.Tensor) -> float:
        """Measure how far identities of consecutive frames are apart, in the evaluator's embeddings."""
        parts = torch.split(clip, context.spec.batch_size)
        return identity_jump(np.concatenate([context.metrics.embed_crops(part)["embedding"] for part in parts]))


def measure_accelerations(landmarks: CropLandmarks | None, clips: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Measure how the landmarks of clips uint8 [T,3,H,W] shake, in eye distances of the target: by metric, nan where
    the mesh finds too few.
    """
    if landmarks is None:
        return {}
    points = {name: landmarks.locate(clip.permute(0, 2, 3, 1).numpy()) for name, clip in clips.items()}
    distances = eye_distance(points["target"])
    unit = distances[~np.isnan(distances)].mean() if np.isfinite(distances).any() else np.nan
    return {
        f"landmark_acceleration{'' if name == 'fused' else f'_{name}'}": float(landmark_acceleration(places) / unit)
        for name, places in points.items()
    }


def split_work(dataset: EvalDataset, clips: Iterable[tuple[Clip, int]], batch_size: int) -> Iterator[WorkItem]:
    """Split the work into items of at most `batch_size` pairs or crops; each clip comes with its source crop."""
    crops, plan = dataset.crops, dataset.plan
    # Clips first: they take longest, and an invalid file of a user should fail early.
    for number, (clip, source) in enumerate(clips):
        (crop,) = crops.select(np.array([source]))
        yield ClipItem(np.array([number]), clip, EncodedCrop(bytes(crop.image), crop.identity))
    for start in range(0, len(plan.pairs), batch_size):
        numbers = np.arange(start, min(start + batch_size, len(plan.pairs)))
        yield PairItem(numbers, compact(SampledPairs(crops, plan.pairs[numbers])))
    # Nothing is measured in the regions of the gallery.
    bare = replace(crops, regions=None)
    for start in range(0, len(plan.gallery), batch_size):
        numbers = plan.gallery[start : start + batch_size]
        yield CropItem(numbers, compact(SampledPairs(bare, numbers[:, None])))


def merge_results(results: Iterable[tuple[RowIndices, MetricColumns]]) -> tuple[RowIndices, MetricColumns]:
    """Merge results, which may come in any order, into the numbers, ascending, and their columns."""
    parts = list(results)
    if not parts:
        return np.empty(0, np.int64), {}
    numbers = np.concatenate([numbers for numbers, _ in parts])
    order = np.argsort(numbers, kind="stable")
    columns = join(columns for _, columns in parts)
    return numbers[order], {name: values[order] for name, values in columns.items()}
