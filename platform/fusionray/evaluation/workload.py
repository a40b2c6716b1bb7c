"""The pieces of an evaluation: a worker gets encoded crops and returns columns. Independent of Ray."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import cv2
import numpy as np
import torch

from fusionray.checkpoint.evaluators import EvaluatorPaths
from fusionray.data.decoding import CropDecoder, collate_pairs
from fusionray.data.pairs import EncodedCrop, SampledPairs
from fusionray.evaluation.clips import Clip
from fusionray.evaluation.dataset import EvalDataset, compact
from fusionray.evaluation.fusion_model import open_fusion_model
from fusionray.faces.align import load_template
from fusionray.hardware.affinity import set_thread_counts
from fusionray.metrics.measure import Columns, Meter, join
from fusionray.metrics.protocol import Rows
from fusionray.metrics.temporal import flicker, warp_error
from fusionray.nets.pixels import to_float
from fusionray.recipes.arcface_crop import ArcFaceCrop, crop_to_arcface_affine

Kind = Literal["pairs", "crops", "clips"]

LEVELS = 255.0


@dataclass(frozen=True)
class EvalSpec:
    """The settings from which a worker builds its EvalContext."""

    model: str
    tracking_uri: str | None
    evaluators: EvaluatorPaths
    template: str
    size: int
    batch: int
    num_workers: int
    threads: int | None
    use_gpu: bool


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
        window = ArcFaceCrop(crop_to_arcface_affine(spec.template)).to(self.device)
        evaluators = spec.evaluators.build(self.device, template=spec.template, size=spec.size)
        self.meter = Meter(evaluators, window, self.device)
        self.decoder = CropDecoder(spec.size, threads)


class Piece(Protocol):
    """A piece of work."""

    @property
    def kind(self) -> Kind:
        """Name the table that its columns belong to."""
        ...

    @property
    def numbers(self) -> Rows:
        """Number what it measures, a row each."""
        ...

    def measure(self, context: EvalContext) -> Columns:
        """Measure it; the rows of the columns are in the order of `numbers`."""
        ...


@dataclass(frozen=True, eq=False)
class PairPiece:
    """Pairs to fuse and measure."""

    numbers: Rows
    draws: SampledPairs
    kind: Kind = "pairs"

    def measure(self, context: EvalContext) -> Columns:
        """Fuse and measure."""
        return context.meter.measure(context.model, collate_pairs([self.draws], context.decoder))


@dataclass(frozen=True, eq=False)
class CropPiece:
    """Real crops to describe, such as those of the gallery."""

    numbers: Rows
    draws: SampledPairs
    kind: Kind = "crops"

    def measure(self, context: EvalContext) -> Columns:
        """Describe each crop."""
        crops = self.draws.crops.select(self.draws.indices[:, 0])
        return context.meter.measure_crops(context.decoder.decode(crops))


@dataclass(frozen=True, eq=False)
class ClipPiece:
    """A clip to fuse with one source."""

    numbers: Rows
    clip: Clip
    source: EncodedCrop
    kind: Kind = "clips"

    def measure(self, context: EvalContext) -> Columns:
        """Fuse frame by frame, as for a video, and measure how stable the result is; one row."""
        frames = self.clip.load(load_template(context.spec.template), context.spec.size)
        source = context.decoder.decode([self.source])
        fused = torch.cat(
            [
                context.model.fuse(
                    source.expand(len(part), -1, -1, -1).to(context.device), part.to(context.device)
                ).cpu()
                for part in torch.split(frames.target, context.spec.batch)
            ]
        )
        target = to_float(frames.target)
        found = {"fused": fused} | ({} if frames.truth is None else {"truth": frames.truth})
        measured: dict[str, float] = {}
        for name, clip in found.items():
            suffix = "" if name == "fused" else f"_{name}"
            measured[f"flicker{suffix}"] = LEVELS * flicker(target, to_float(clip))
            error = warp_error(target, to_float(clip))
            measured[f"warp_error{suffix}"] = error.fused
            measured["warp_error_target"] = error.target
        return {name: np.array([value], np.float32) for name, value in measured.items()}


def divide(dataset: EvalDataset, clips: Iterable[tuple[Clip, int]], batch: int) -> Iterator[Piece]:
    """Cut the work into pieces of at most `batch` pairs or crops; each clip comes with its source crop."""
    crops, plan = dataset.crops, dataset.plan
    # Clips first: they take longest, and a user's file may be invalid.
    for number, (clip, source) in enumerate(clips):
        (crop,) = crops.select(np.array([source]))
        yield ClipPiece(np.array([number]), clip, EncodedCrop(bytes(crop.image), crop.identity))
    for start in range(0, len(plan.pairs), batch):
        numbers = np.arange(start, min(start + batch, len(plan.pairs)))
        yield PairPiece(numbers, compact(SampledPairs(crops, plan.pairs[numbers])))
    for start in range(0, len(plan.gallery), batch):
        numbers = plan.gallery[start : start + batch]
        yield CropPiece(numbers, compact(SampledPairs(crops, numbers[:, None])))


def collect(answers: Iterable[tuple[Rows, Columns]]) -> tuple[Rows, Columns]:
    """Join answers that came in any order: the numbers, ascending, and their columns."""
    parts = list(answers)
    if not parts:
        return np.empty(0, np.int64), {}
    numbers = np.concatenate([numbers for numbers, _ in parts])
    order = np.argsort(numbers, kind="stable")
    columns = join(columns for _, columns in parts)
    return numbers[order], {name: values[order] for name, values in columns.items()}
