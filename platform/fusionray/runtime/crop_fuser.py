"""The generator: sources and crops in, fused crops and masks out. The part of the work that a GPU is for.

N faces, S crop size. What stands for a source is [L] values or a picture [3,s,s], as the bundle's `source_shape` says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import EMBEDDING_LENGTH, FACE_FUSION, GENERATOR_NAME, Precision
from fusionray.runtime.config import Precision as Stored
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engine import EngineReport, open_engine
from fusionray.runtime.fixed_batches import run_batches
from fusionray.runtime.pixels import FloatArray, denormalize_crops, denormalize_masks, normalize_crops
from fusionray.runtime.signature import check_generator, fixed_batch, has_mask

# More faces than this are computed in turns, so that a picture of a crowd does not decide how much memory is needed.
MAX_BATCH = 8


@dataclass(frozen=True, eq=False)
class FusedCrops:
    """What the generator made: `crops` uint8 [N,S,S,3], and where they hold, `masks` float32 [N,S,S] in 0..1."""

    crops: NDArray[np.uint8]
    masks: FloatArray


class CropFuser:
    """Hold the generator of a bundle ready, in one of its precisions. Calls from several threads are allowed.

    Raises: BundleInvalid if the bundle is of another task, or the model is not what it says or is not there in that
        precision; ProviderUnavailable.
    """

    def __init__(
        self,
        bundle: Bundle,
        settings: RuntimeConfig | None = None,
        *,
        precision: Precision = "fp32",
        max_batch: int = MAX_BATCH,
    ) -> None:
        bundle.require_task(FACE_FUSION)
        self.size = bundle.description.size
        self.source_shape = bundle.source_shape
        self.max_batch = max_batch
        self.batch = fixed_batch(bundle, GENERATOR_NAME)
        path = bundle.generator_path_for(precision)
        stored: Stored = "fp16" if precision == "fp16" else "fp32"
        self.engine = open_engine(path, settings, digest=bundle.description.files[path.name], stored=stored)
        check_generator(bundle, self.engine)
        self.roles = ("output", "mask") if has_mask(bundle) else ("output",)
        self.described = {role: bundle.tensor(GENERATOR_NAME, role) for role in ("source", "target", *self.roles)}
        self.ports = {role: bundle.port(GENERATOR_NAME, role) for role in self.described}

    @property
    def report(self) -> EngineReport:
        """Report what the generator runs on."""
        return self.engine.report

    def warm_up(self) -> None:
        """Run once, so that the first request does not pay for lazy allocation and kernel choice."""
        source = np.full((1, *self.source_shape), EMBEDDING_LENGTH**-0.5, np.float32)
        self.fuse(source, np.zeros((1, self.size, self.size, 3), np.uint8))

    def fuse(self, sources: FloatArray, crops_NSS3: NDArray[np.uint8]) -> FusedCrops:
        """Fuse aligned crops, each with what stands for its source [N,...], in batches."""
        outputs, masks = [], []
        for start in range(0, len(crops_NSS3), self.max_batch):
            batch = slice(start, start + self.max_batch)
            found = self.forward(sources[batch], normalize_crops(crops_NSS3[batch], self.described["target"]))
            crops = denormalize_crops(found["output"], self.described["output"])
            outputs.append(crops)
            # A model that does not say where its picture holds means: everywhere.
            whole = np.ones(crops.shape[:3], np.float32)
            masks.append(denormalize_masks(found["mask"], self.described["mask"]) if "mask" in found else whole)
        return FusedCrops(np.concatenate(outputs), np.concatenate(masks))

    def forward(self, sources: FloatArray, target_NCHW: FloatArray) -> dict[str, FloatArray]:
        """Run the generator on what the model itself takes; give what it gives by role, in the model's levels."""
        inputs = {self.ports["source"]: sources, self.ports["target"]: target_NCHW}
        wanted = [self.ports[role] for role in self.roles]
        step = self.batch or self.max_batch
        found = run_batches(self.engine, wanted, inputs, step, fixed=self.batch is not None)
        return dict(zip(self.roles, found, strict=True))
