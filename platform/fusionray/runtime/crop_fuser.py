"""Run the generator of a bundle: encoded sources and target crops in, fused crops and masks out.

N faces, S crop size. An encoded source is [L] values or a picture [3,s,s]: `source_shape` of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import EMBEDDING_LENGTH, FACE_FUSION, GENERATOR_NAME, WeightPrecision
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.engine import EngineReport
from fusionray.runtime.engines.factory import open_generator
from fusionray.runtime.engines.fixed_batches import run_batches
from fusionray.runtime.engines.providers import GPU_PROVIDERS
from fusionray.runtime.engines.signature import check_generator, fixed_batch, has_mask
from fusionray.runtime.pixels import FloatArray, denormalize_crops, denormalize_masks, normalize_crops

# More faces are computed in several batches, so that a picture of many faces does not need more memory.
MAX_BATCH = 8


@dataclass(frozen=True, eq=False)
class FusedCrops:
    """Output of the generator: `crops` uint8 RGB [N,S,S,3], and `masks` float32 [N,S,S] in 0..1, to paste them by."""

    crops: NDArray[np.uint8]
    masks: FloatArray


class CropFuser:
    """The loaded generator of a bundle, in one of its precisions. Thread-safe.

    Raises: BundleInvalid if the bundle is of another task, has no generator in that precision, or describes its model
        wrongly; ProviderUnavailable.
    """

    def __init__(
        self,
        bundle: Bundle,
        settings: RuntimeConfig | None = None,
        *,
        precision: WeightPrecision = "fp32",
        max_batch: int = MAX_BATCH,
    ) -> None:
        bundle.require_task(FACE_FUSION)
        self.size = bundle.description.size
        self.source_shape = bundle.source_shape
        self.max_batch = max_batch
        self.batch = fixed_batch(bundle, GENERATOR_NAME)
        self.engine = open_generator(bundle, settings, precision=precision)
        check_generator(bundle, self.engine)
        self.roles = ("output", "mask") if has_mask(bundle) else ("output",)
        self.described = {role: bundle.tensor(GENERATOR_NAME, role) for role in ("source", "target", *self.roles)}
        self.ports = {role: bundle.port(GENERATOR_NAME, role) for role in self.described}

    @property
    def report(self) -> EngineReport:
        """Return what the generator runs on."""
        return self.engine.report

    def warm_up(self) -> None:
        """Run once, so that lazy allocation and kernel choice do not slow the first request.

        A GPU chooses its kernels for each size of a batch, so it runs every size.
        """
        on_gpu = self.report.provider in GPU_PROVIDERS
        for size in range(1, self.max_batch + 1) if on_gpu and self.batch is None else (1,):
            sources = np.full((size, *self.source_shape), EMBEDDING_LENGTH**-0.5, np.float32)
            self.fuse(sources, np.zeros((size, self.size, self.size, 3), np.uint8))

    def fuse(self, sources: FloatArray, crops_NSS3: NDArray[np.uint8]) -> FusedCrops:
        """Fuse aligned target crops uint8 RGB [N,S,S,3] with one encoded source each, float32 [N,...], in batches."""
        outputs, masks = [], []
        for start in range(0, len(crops_NSS3), self.max_batch):
            batch = slice(start, start + self.max_batch)
            found = self.forward(sources[batch], normalize_crops(crops_NSS3[batch], self.described["target"]))
            crops = denormalize_crops(found["output"], self.described["output"])
            outputs.append(crops)
            # Without a mask, the whole crop is pasted.
            whole = np.ones(crops.shape[:3], np.float32)
            masks.append(denormalize_masks(found["mask"], self.described["mask"]) if "mask" in found else whole)
        return FusedCrops(np.concatenate(outputs), np.concatenate(masks))

    def forward(self, sources: FloatArray, target_NCHW: FloatArray) -> dict[str, FloatArray]:
        """Run the generator on float32 inputs in its own value range; return its raw outputs by role."""
        inputs = {self.ports["source"]: sources, self.ports["target"]: target_NCHW}
        wanted = [self.ports[role] for role in self.roles]
        step = self.batch or self.max_batch
        found = run_batches(self.engine, wanted, inputs, step, fixed=self.batch is not None)
        return dict(zip(self.roles, found, strict=True))
