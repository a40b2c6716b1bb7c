"""The generator: sources and crops in, fused crops and masks out. The part of the work that a GPU is for.

N faces, S crop size, L length of what stands for a source.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusionray.export.bundle import EMBEDDING_LENGTH, GENERATOR_NAME, Bundle
from fusionray.runtime.engine import EngineReport, open_engine
from fusionray.runtime.pixels import FloatArray, denormalize_crops, normalize_crops
from fusionray.runtime.settings import RuntimeSettings
from fusionray.runtime.signature import check_generator

# More faces than this are computed in turns, so that a picture of a crowd does not decide how much memory is needed.
MAX_BATCH = 8


@dataclass(frozen=True, eq=False)
class FusedCrops:
    """What the generator made: `crops` uint8 [N,S,S,3], and where they hold, `masks` float32 [N,S,S] in 0..1."""

    crops: NDArray[np.uint8]
    masks: FloatArray


class CropFuser:
    """Hold the generator of a bundle ready. Calls from several threads at the same time are allowed.

    Raises: BundleInvalid if the model is not of the kind that this runtime drives; ProviderUnavailable.
    """

    def __init__(self, bundle: Bundle, settings: RuntimeSettings | None = None, *, max_batch: int = MAX_BATCH) -> None:
        self.size = bundle.description.size
        self.source_length = bundle.source_length
        self.max_batch = max_batch
        self.engine = open_engine(bundle.generator_path, settings)
        check_generator(bundle, self.engine)
        self.target_range = bundle.tensor(GENERATOR_NAME, "target")
        self.output_range = bundle.tensor(GENERATOR_NAME, "output")

    @property
    def report(self) -> EngineReport:
        """Report what the generator runs on."""
        return self.engine.report

    def warm_up(self) -> None:
        """Run once, so that the first request does not pay for lazy allocation and kernel choice."""
        source = np.full((1, self.source_length), EMBEDDING_LENGTH**-0.5, np.float32)
        self.forward(source, np.zeros((1, 3, self.size, self.size), np.float32))

    def fuse(self, source_NL: FloatArray, crops_NSS3: NDArray[np.uint8]) -> FusedCrops:
        """Fuse aligned crops, each with its source, in batches."""
        outputs, masks = [], []
        for start in range(0, len(crops_NSS3), self.max_batch):
            batch = slice(start, start + self.max_batch)
            output, mask = self.forward(source_NL[batch], normalize_crops(crops_NSS3[batch], self.target_range))
            outputs.append(denormalize_crops(output, self.output_range))
            masks.append(np.clip(np.nan_to_num(mask[:, 0]), 0.0, 1.0))
        return FusedCrops(np.concatenate(outputs), np.concatenate(masks))

    def forward(self, source_NL: FloatArray, target_NCHW: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Run the generator: fused crops [N,3,S,S] in the bundle's range and masks [N,1,S,S]."""
        output, mask = self.engine.run(["output", "mask"], {"source": source_NL, "target": target_NCHW})
        return output, mask
