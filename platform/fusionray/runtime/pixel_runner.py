"""The default runner: runs a model that takes named pictures and gives one picture.

Input pictures are uint8 RGB HWC of any size; the centre of each is cropped and resized to the size the model takes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import DESCRIPTION_NAME, GENERATOR_NAME, TensorDescription, WeightPrecision
from fusionray.errors import BundleInvalid
from fusionray.faces.face import Image
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.engine import EngineReport
from fusionray.runtime.engines.factory import open_generator
from fusionray.runtime.engines.fixed_batches import run_batches
from fusionray.runtime.engines.signature import check_ports, fixed_batch
from fusionray.runtime.pixels import denormalize_crops, normalize_crops

OUTPUT = "output"
# More pictures are computed in several batches, so that their number does not increase the memory.
MAX_BATCH = 8


class PixelRunner:
    """The loaded model of a bundle, in one of its precisions. Thread-safe.

    Raises: BundleInvalid if the bundle describes its model wrongly, has none in that precision, or its inputs and
        output are not pictures; ProviderUnavailable.
    """

    def __init__(
        self, bundle: Bundle, settings: RuntimeConfig | None = None, *, precision: WeightPrecision = "fp32"
    ) -> None:
        self.inputs = bundle.description.inputs
        self.described = {role: bundle.tensor(GENERATOR_NAME, role) for role in (*self.inputs, OUTPUT)}
        self.sizes = {role: picture_size(bundle, role, tensor) for role, tensor in self.described.items()}
        self.ports = {role: bundle.port(GENERATOR_NAME, role) for role in self.described}
        self.batch = fixed_batch(bundle, GENERATOR_NAME)
        self.engine = open_generator(bundle, settings, precision=precision)
        shapes = {role: (3, *size) for role, size in self.sizes.items()}
        check_ports(bundle, GENERATOR_NAME, "output", self.engine.outputs, {OUTPUT: shapes.pop(OUTPUT)})
        check_ports(bundle, GENERATOR_NAME, "input", self.engine.inputs, shapes)
        # The description has no order of inputs; the graph has that of the exported module.
        order = list(self.engine.inputs)
        self.inputs = tuple(sorted(self.inputs, key=lambda role: order.index(self.ports[role])))

    @property
    def report(self) -> EngineReport:
        """Return what the model runs on."""
        return self.engine.report

    def warm_up(self) -> None:
        """Run once, so that lazy allocation and kernel choice do not slow the first request."""
        self.run_batch({role: np.zeros((1, *self.sizes[role], 3), np.uint8) for role in self.inputs})

    def run(self, pictures: Mapping[str, Image]) -> Image:
        """Make one picture uint8 RGB [H,W,3] from one for each name in `inputs`; the model decides its size.

        Raises: KeyError if a picture is missing.
        """
        return self.run_many([pictures], [{}])[0]

    def batch_key(self, pictures: Mapping[str, Image]) -> Hashable:  # noqa: ARG002
        """Return the same for all calls: pictures get the sizes of the model."""
        return ()

    def run_many(self, pictures: Sequence[Mapping[str, Image]], settings: Sequence[Mapping[str, Any]]) -> list[Image]:
        """Make one picture of each call, as `run`.

        Raises: KeyError if a picture is missing; TypeError for settings, of which there are none.
        """
        if any(settings):
            raise TypeError("a model that only maps pictures has no settings")
        fitted = {
            role: np.stack([fit_picture(call[role], self.sizes[role]) for call in pictures]) for role in self.inputs
        }
        return list(self.run_batch(fitted))

    def run_batch(self, pictures: Mapping[str, NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """Make N pictures uint8 RGB [N,H,W,3] from N of each input, which already have the size of that input."""
        inputs = {self.ports[role]: normalize_crops(pictures[role], self.described[role]) for role in self.inputs}
        step = self.batch or MAX_BATCH
        (made,) = run_batches(self.engine, [self.ports[OUTPUT]], inputs, step, fixed=self.batch is not None)
        return np.ascontiguousarray(denormalize_crops(made, self.described[OUTPUT]))


def picture_size(bundle: Bundle, role: str, described: TensorDescription) -> tuple[int, int]:
    """Return height and width of a picture input or output.

    Raises: BundleInvalid if it is not a picture, or its size is not fixed.
    """
    _, *shape = described.shape
    sizes = [size for size in shape if isinstance(size, int)]
    if described.meaning != "picture" or len(sizes) != 3 or sizes[0] != 3:
        raise BundleInvalid(
            f"{bundle.folder}/{DESCRIPTION_NAME}: '{role}' is a {described.meaning} {list(described.shape)}; without "
            f"a runner of the task {bundle.description.task}, only pictures [N, 3, height, width] run; install one"
        )
    return sizes[1], sizes[2]


def fit_picture(picture: Image, size: tuple[int, int]) -> Image:
    """Crop the centre of a picture to the aspect ratio of `size` (height, width), and resize it to `size`."""
    height, width = picture.shape[:2]
    scale = min(height / size[0], width / size[1])
    rows, columns = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
    top, left = (height - rows) // 2, (width - columns) // 2
    cut = picture[top : top + rows, left : left + columns]
    if (rows, columns) == size:
        return np.ascontiguousarray(cut)
    # Area averaging avoids aliasing when the picture shrinks.
    method = cv2.INTER_AREA if scale > 1 else cv2.INTER_CUBIC
    resized: Image = cv2.resize(cut, (size[1], size[0]), interpolation=method).astype(np.uint8, copy=False)
    return resized
