"""From pictures to a picture: the runner of every task whose model takes pictures by name and gives one.

Pictures are uint8 RGB HWC at any size. What a model takes is cut out of the middle and resized. N pictures.
"""

from __future__ import annotations

from collections.abc import Mapping

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.bundle.bundle import DESCRIPTION_NAME, Bundle
from fusionray.bundle.description import GENERATOR_NAME, Precision, TensorDescription
from fusionray.errors import BundleInvalid
from fusionray.faces.face import Image
from fusionray.runtime.config import Precision as Stored
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engine import EngineReport, open_engine
from fusionray.runtime.fixed_batches import run_batches
from fusionray.runtime.pixels import denormalize_crops, normalize_crops
from fusionray.runtime.signature import check_ports, fixed_batch

OUTPUT = "output"
# More pictures than this are computed in turns, so that their number does not decide how much memory is needed.
MAX_BATCH = 8


class PixelRunner:
    """Hold the model of a bundle ready, in one of its precisions. Calls from several threads are allowed.

    Raises: BundleInvalid if the model is not what the bundle says, does not map pictures to a picture, or is not there
        in that precision; ProviderUnavailable.
    """

    def __init__(self, bundle: Bundle, settings: RuntimeConfig | None = None, *, precision: Precision = "fp32") -> None:
        self.inputs = bundle.description.inputs
        self.described = {role: bundle.tensor(GENERATOR_NAME, role) for role in (*self.inputs, OUTPUT)}
        self.sizes = {role: picture_size(bundle, role, tensor) for role, tensor in self.described.items()}
        self.ports = {role: bundle.port(GENERATOR_NAME, role) for role in self.described}
        self.batch = fixed_batch(bundle, GENERATOR_NAME)
        path = bundle.generator_path_for(precision)
        stored: Stored = "fp16" if precision == "fp16" else "fp32"
        self.engine = open_engine(path, settings, digest=bundle.description.files[path.name], stored=stored)
        shapes = {role: (3, *size) for role, size in self.sizes.items()}
        check_ports(bundle, GENERATOR_NAME, "output", self.engine.outputs, {OUTPUT: shapes.pop(OUTPUT)})
        check_ports(bundle, GENERATOR_NAME, "input", self.engine.inputs, shapes)
        # The description keeps no order, the graph that of the module that was exported.
        order = list(self.engine.inputs)
        self.inputs = tuple(sorted(self.inputs, key=lambda role: order.index(self.ports[role])))

    @property
    def report(self) -> EngineReport:
        """Report what the model runs on."""
        return self.engine.report

    def warm_up(self) -> None:
        """Run once, so that the first request does not pay for lazy allocation and kernel choice."""
        self.run_batch({role: np.zeros((1, *self.sizes[role], 3), np.uint8) for role in self.inputs})

    def run(self, pictures: Mapping[str, Image]) -> Image:
        """Make one picture from the named ones, each of any size, in the size that the model gives.

        Raises: KeyError for an input that is not among them.
        """
        fitted = {role: fit_picture(pictures[role], self.sizes[role])[None] for role in self.inputs}
        picture: Image = self.run_batch(fitted)[0]
        return picture

    def run_batch(self, pictures: Mapping[str, NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """Make N pictures [N,H,W,3] from N of each input, which have the size of that input already."""
        inputs = {self.ports[role]: normalize_crops(pictures[role], self.described[role]) for role in self.inputs}
        step = self.batch or MAX_BATCH
        (made,) = run_batches(self.engine, [self.ports[OUTPUT]], inputs, step, fixed=self.batch is not None)
        return np.ascontiguousarray(denormalize_crops(made, self.described[OUTPUT]))


def picture_size(bundle: Bundle, role: str, described: TensorDescription) -> tuple[int, int]:
    """Give height and width of an input or output that is a picture.

    Raises: BundleInvalid if it is something else, or of no size.
    """
    _, *shape = described.shape
    sizes = [size for size in shape if isinstance(size, int)]
    if described.meaning != "picture" or len(sizes) != 3 or sizes[0] != 3:
        raise BundleInvalid(
            f"{bundle.folder}/{DESCRIPTION_NAME}: '{role}' is a {described.meaning} {list(described.shape)}, and the "
            f"task {bundle.description.task} is only known here for pictures [N, 3, height, width]; install its runner"
        )
    return sizes[1], sizes[2]


def fit_picture(picture: Image, size: tuple[int, int]) -> Image:
    """Cut the largest piece of the shape of `size` (height, width) out of the middle, and resize it."""
    height, width = picture.shape[:2]
    scale = min(height / size[0], width / size[1])
    rows, columns = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
    top, left = (height - rows) // 2, (width - columns) // 2
    cut = picture[top : top + rows, left : left + columns]
    if (rows, columns) == size:
        return np.ascontiguousarray(cut)
    # Averaging areas keeps a picture that shrinks free of aliasing.
    method = cv2.INTER_AREA if scale > 1 else cv2.INTER_CUBIC
    resized: Image = cv2.resize(cut, (size[1], size[0]), interpolation=method).astype(np.uint8, copy=False)
    return resized
