"""A face restorer: a model of the operator that sharpens fused faces, which the generator makes at its own size.

None is shipped. What runs is any ONNX model that makes a picture of a picture: GFPGAN, GPEN, RestoreFormer, CodeFormer,
or an upscaler of faces. It changes no pixel that the fusion has not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fusionray.bundle.description import TensorDescription
from fusionray.config import Section, in_unit
from fusionray.environment import resolve_location
from fusionray.errors import BundleInvalid, ConfigInvalid
from fusionray.faces.align import Template, compose, enlarge_map, load_template, template_to_template, warp_crop
from fusionray.faces.blending.paste import paste_crop
from fusionray.faces.face import FloatMap, Image, Matrix
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.factory import open_engine
from fusionray.runtime.pixels import denormalize_crops, normalize_crops

# Types of inputs beside the picture, by their names in ONNX Runtime and OpenVINO.
NUMBER_TYPES: dict[str, type] = {"tensor(double)": np.float64, "f64": np.float64}


class RestorerConfig(Section):
    """The model that sharpens fused faces, and how it takes them."""

    model: str | None = Field(
        default=None,
        description="ONNX file of a face restorer or upscaler; null: faces stay as the generator makes them.",
    )
    licence: str | None = Field(
        default=None, description="Licence of the model, such as Apache-2.0: outputs name it; many allow no trade."
    )
    template: str = Field(default="ffhq_512", description="Alignment of the crops: a name of faces/templates.yaml.")
    size: int = Field(
        default=512, ge=32, le=2048, description="Side of the crops, if the model leaves it open.",
        json_schema_extra=in_unit("px"),
    )  # fmt: skip
    minimum: float = Field(default=-1.0, description="Value of black.", json_schema_extra=in_unit(""))
    maximum: float = Field(default=1.0, description="Value of white.", json_schema_extra=in_unit(""))
    channels: Literal["rgb", "bgr"] = Field(default="rgb", description="Order of the colours in the model.")
    inputs: dict[str, float] = Field(
        default={}, description="Values of further inputs, such as CodeFormer's `weight`, by their names."
    )
    strength: float = Field(
        default=0.8, gt=0, le=1, description="Share of the restored face in the blend.", json_schema_extra=in_unit("")
    )

    @model_validator(mode="after")
    def check_model(self) -> RestorerConfig:
        if (self.model is None) != (self.licence is None):
            raise ValueError("model and licence belong together: give both, or none")
        if self.minimum >= self.maximum:
            raise ValueError(f"minimum {self.minimum:g} must lie below maximum {self.maximum:g}")
        load_template(self.template)
        return self


class FaceRestorer:
    """A loaded restorer. Thread-safe.

    Raises: ConfigInvalid naming the file, if it is no such model; ProviderUnavailable.
    """

    def __init__(self, settings: RestorerConfig, runtime: RuntimeConfig | None = None) -> None:
        assert settings.model is not None
        self.settings = settings
        self.path = Path(resolve_location(settings.model))
        try:
            self.engine = open_engine(self.path, runtime)
        except BundleInvalid as error:
            raise ConfigInvalid(f"restorer.model: {error}") from None
        pictures = [name for name, port in self.engine.inputs.items() if len(port.shape) == 4]
        if len(pictures) != 1 or self.engine.inputs[pictures[0]].shape[1] != 3:
            raise self.invalid("does not take one picture [1,3,H,W]")
        (self.picture,) = pictures
        (self.output, *_) = self.engine.outputs
        further = set(self.engine.inputs) - {self.picture}
        if further != set(settings.inputs):
            wanted, given = ", ".join(sorted(further)) or "none", ", ".join(sorted(settings.inputs)) or "none"
            raise self.invalid(f"has the further inputs {wanted}, restorer.inputs has {given}")
        side = self.engine.inputs[self.picture].shape[2]
        self.size = side if isinstance(side, int) else settings.size
        self.template: Template = load_template(settings.template)
        self.described = TensorDescription(
            meaning="picture",
            shape=(1, 3, "height", "width"),
            minimum=settings.minimum,
            maximum=settings.maximum,
            order=settings.channels,
        )
        self.factor = self.find_factor()

    def invalid(self, fault: str) -> ConfigInvalid:
        return ConfigInvalid(f"restorer.model: {self.path} {fault}")

    @property
    def title(self) -> str:
        """Return its name and licence, as outputs state them."""
        return f"{self.path.stem} ({self.settings.licence})"

    def find_factor(self) -> int:
        """Run the model once, and return how much larger its output is.

        Raises: ConfigInvalid if it does not run, or makes no picture of a whole multiple of the size.
        """
        try:
            made = self.run(np.zeros((self.size, self.size, 3), np.uint8))
        except Exception as error:  # noqa: BLE001 - each library has errors of its own
            raise self.invalid(f"does not run ({' '.join(str(error).split())[:200]})") from None
        height, width = made.shape[:2]
        if height != width or height % self.size:
            raise self.invalid(f"makes {width} x {height} px of {self.size}; a whole multiple is needed")
        return int(height // self.size)

    def run(self, crop: Image) -> Image:
        """Restore a crop, uint8 RGB [S,S,3], in the template of the model."""
        given: dict[str, NDArray[Any]] = {self.picture: normalize_crops(crop[None], self.described)}
        for name, value in self.settings.inputs.items():
            port = self.engine.inputs[name]
            shape = [side if isinstance(side, int) else 1 for side in port.shape]
            given[name] = np.full(shape, value, NUMBER_TYPES.get(port.dtype, np.float32))
        (made,) = self.engine.run([self.output], given)
        if made.ndim != 4 or made.shape[1] != 3:
            raise ValueError(f"its output has the shape {made.shape}")
        return np.ascontiguousarray(denormalize_crops(made, self.described)[0])

    def restore(self, image: Image, template: Template, matrices: Sequence[Matrix], masks: Iterable[FloatMap]) -> None:
        """Restore fused faces in a picture, in place.

        `matrices` map the picture to the generator's crops in `template`; `masks` [S,S] of 0 to 1 say where each was
        pasted: the restored face is blended by them, so nothing else changes.
        """
        for matrix, mask in zip(matrices, masks, strict=True):
            between = template_to_template(template, len(mask), self.template, self.size)
            to_crop = compose(between, matrix)
            restored = self.run(warp_crop(image, to_crop, self.size))
            side = self.size * self.factor
            enlarged = enlarge_map(self.factor)
            shown = cv2.warpAffine(
                mask * np.float32(self.settings.strength), compose(enlarged, between), (side, side),
                flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT,
            )  # fmt: skip
            paste_crop(image, restored, np.asarray(shown, np.float32), compose(enlarged, to_crop))


def open_restorer(settings: RestorerConfig, runtime: RuntimeConfig | None = None) -> FaceRestorer | None:
    """Load the restorer; None if the settings name none.

    Raises: ConfigInvalid, ProviderUnavailable.
    """
    return FaceRestorer(settings, runtime) if settings.model is not None else None


def describe_makers(model: str, restorer: FaceRestorer | None) -> str:
    """Name the model of a fusion, and the restorer if there is one."""
    return model if restorer is None else f"{model}, restored by {restorer.title}"
