"""Stylize whole pictures: encode one or several styles, mix them, and paint a content in them.

Pictures are uint8 RGB HWC of any size; large ones are painted in tiles, with the same result. L: length of an encoded
style.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import cv2
import numpy as np

from fusionray.bands.array import ArrayBands
from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import DESCRIPTION_NAME, GENERATOR_NAME, STYLE_NAME, STYLE_TRANSFER, WeightPrecision
from fusionray.errors import BundleInvalid, ImageRejected
from fusionray.faces.face import Image
from fusionray.hardware.memory import free_bytes
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.engine import EngineReport
from fusionray.runtime.engines.factory import open_engine, open_generator
from fusionray.runtime.engines.signature import check_ports
from fusionray.runtime.pixels import FloatArray, denormalize_crops, normalize_crops
from fusionray.runtime.style_transfer.styles import STRIDE, check_strength, mix_styles
from fusionray.runtime.style_transfer.tiled_stylizer import TiledStylizer
from fusionray.runtime.style_transfer.tiles import pad_picture, pad_side

# Larger contents are painted in tiles: it takes twice the time, and a tenth of the memory or less.
WHOLE_PIXELS = 4_000_000
# Larger contents are not painted in a common batch, which would take as many times their memory.
BATCH_PIXELS = 2**19
# Memory that painting a picture as a whole takes at most, for each of its pixels (measured: 480, on ONNX Runtime).
BYTES_PER_PIXEL = 512
AnyPicture = TypeVar("AnyPicture")
# Of pictures the models take any height and width.
ANY_PICTURE = (3, 0, 0)


class Stylizer:
    """The loaded models of a style-transfer bundle. Thread-safe.

    `precision` chooses among the painting models of the bundle.

    Raises: BundleInvalid if the bundle is of another task or describes its models wrongly; ProviderUnavailable.
    """

    def __init__(
        self, bundle: Bundle, settings: RuntimeConfig | None = None, *, precision: WeightPrecision = "fp32"
    ) -> None:
        bundle.require_task(STYLE_TRANSFER)
        self.bundle, self.settings = bundle, settings
        self.size = bundle.description.size
        self.picture = bundle.tensor(GENERATOR_NAME, "content")
        self.length = style_length(bundle)
        self.painter = open_generator(bundle, settings, precision=precision)
        digest = bundle.description.files[STYLE_NAME]
        self.encoder = open_engine(bundle.folder / STYLE_NAME, settings, digest=digest)
        style = {"style": (self.length,)}
        check_ports(bundle, GENERATOR_NAME, "input", self.painter.inputs, {"content": ANY_PICTURE, **style})
        check_ports(bundle, GENERATOR_NAME, "output", self.painter.outputs, {"output": ANY_PICTURE})
        check_ports(bundle, STYLE_NAME, "input", self.encoder.inputs, {"picture": ANY_PICTURE})
        check_ports(bundle, STYLE_NAME, "output", self.encoder.outputs, style)

    @cached_property
    def tiled(self) -> TiledStylizer:
        """The models that take tiles, opened when they are first needed.

        Raises: BundleInvalid if the bundle has none.
        """
        return TiledStylizer(self.bundle, self.settings)

    def warm_up(self) -> None:
        """Run both models once, so that lazy allocation and kernel choice do not slow the first request."""
        self.stylize(np.zeros((self.size, self.size, 3), np.uint8), [np.zeros((self.size, self.size, 3), np.uint8)])

    def stylize(
        self, content: Image, styles: Sequence[Image], *, weights: Sequence[float] | None = None, strength: float = 1.0
    ) -> Image:
        """Paint a content in the mixture of some styles: a picture of its size.

        `weights`: one for each style, at least 0 and not all 0; by default all are equal. `strength`: 0 (painted in its
        own style, which is nearly the content as it is) to 1.

        Raises: ValueError for weights or a strength that are not so; ImageRejected as `paint`.
        """
        mixed = mix_styles([self.encode_style(style) for style in styles], weights)
        return self.paint(content, mixed, strength)

    def encode_style(self, picture: Image) -> FloatArray:
        """Encode the style of a picture: float32 [L].

        A picture larger than those of the training is made smaller first: strokes keep their size in the picture.
        """
        return self.encode_whole(reduce_picture(picture, self.size))

    def encode_whole(self, picture: Image) -> FloatArray:
        """Encode the style of a picture at its own resolution: float32 [L]."""
        style: FloatArray = self.encode_batch([picture])[0]
        return style

    def encode_batch(self, pictures: Sequence[Image]) -> FloatArray:
        """Encode the styles of N pictures, whose padded sizes are equal: float32 [N,L]."""
        batch = normalize_crops(np.stack([pad_picture(picture, STRIDE) for picture in pictures]), self.picture)
        (encoded,) = self.encoder.run(["style"], {"picture": batch})
        styles: FloatArray = encoded
        return styles

    def paint(self, content: Image, style: FloatArray, strength: float = 1.0) -> Image:
        """Paint a content in an encoded style [L]: uint8 RGB of the content's size; `strength` as in `stylize`.

        Raises: ValueError for a strength outside 0..1; ImageRejected ("too_large") for what does not fit into memory.
        """
        check_strength(strength)
        if content.shape[0] * content.shape[1] > WHOLE_PIXELS and self.bundle.description.halos:
            return np.concatenate(list(self.tiled.paint(ArrayBands(content), style, strength)))
        check_memory(content, free_bytes())
        if strength < 1.0:
            style = mix_styles([style, self.encode_whole(content)], [strength, 1.0 - strength])
        return self.paint_whole(content, style)

    def paint_whole(self, content: Image, style: FloatArray) -> Image:
        """Paint a content in an encoded style as a whole, whatever its size."""
        return self.paint_batch([content], style[None])[0]

    def paint_batch(self, contents: Sequence[Image], styles_NL: FloatArray) -> list[Image]:
        """Paint N contents, whose padded sizes are equal, each in its encoded style, as wholes."""
        batch = normalize_crops(np.stack([pad_picture(content, STRIDE) for content in contents]), self.picture)
        (made,) = self.painter.run(["output"], {"content": batch, "style": styles_NL})
        painted = denormalize_crops(made, self.picture)
        return [
            np.ascontiguousarray(each[: content.shape[0], : content.shape[1]])
            for each, content in zip(painted, contents, strict=True)
        ]


class StyleTransferRunner:
    """Runner of the task style transfer: paint `content` in the style of `style`, and of further ones. Thread-safe."""

    inputs = ("content", "style")

    def __init__(
        self, bundle: Bundle, settings: RuntimeConfig | None = None, *, precision: WeightPrecision = "fp32"
    ) -> None:
        self.stylizer = Stylizer(bundle, settings, precision=precision)

    @property
    def report(self) -> EngineReport:
        """Return the execution provider and settings of the painting model."""
        return self.stylizer.painter.report

    def warm_up(self) -> None:
        """Run both models once, so that lazy allocation does not slow the first request."""
        self.stylizer.warm_up()

    def run(
        self, pictures: Mapping[str, Image], *, weights: Sequence[float] | None = None, strength: float = 1.0
    ) -> Image:
        """Return `content` in the style of all other pictures, `style` and those that `name_pictures` names.

        It is uint8 RGB [H, W, 3], of the size of `content`. `weights` and `strength` as in `Stylizer.stylize`.

        Raises: KeyError without `content` or `style`; ValueError, ImageRejected as `Stylizer.stylize`.
        """
        return self.stylizer.stylize(
            pictures["content"], self.list_styles(pictures), weights=weights, strength=strength
        )

    def list_styles(self, pictures: Mapping[str, Image]) -> list[Image]:
        """Return the styles of one call."""
        return [pictures["style"], *(picture for name, picture in pictures.items() if name not in self.inputs)]

    def batch_key(self, pictures: Mapping[str, Image]) -> Hashable:
        """Return the padded size of the content; None for a large content, which is painted alone.

        Raises: KeyError without `content`.
        """
        sides = [pad_side(side, STRIDE) for side in pictures["content"].shape[:2]]
        return tuple(sides) if math.prod(sides) <= BATCH_PIXELS else None

    def run_many(self, pictures: Sequence[Mapping[str, Image]], settings: Sequence[Mapping[str, Any]]) -> list[Image]:
        """Paint the contents of several calls, whose padded sizes are equal, at once; each as `run` does."""
        contents = [call["content"] for call in pictures]
        strengths = [float(each.get("strength", 1.0)) for each in settings]
        styles = [
            mix_styles([self.stylizer.encode_style(style) for style in self.list_styles(call)], each.get("weights"))
            for call, each in zip(pictures, settings, strict=True)
        ]
        for strength in strengths:
            check_strength(strength)
        if min(strengths) < 1.0:
            own = self.stylizer.encode_batch(contents)
            styles = [
                mix_styles([style, mine], [strength, 1.0 - strength])
                for style, mine, strength in zip(styles, own, strengths, strict=True)
            ]
        return self.stylizer.paint_batch(contents, np.stack(styles))


def name_pictures(content: AnyPicture, styles: Sequence[AnyPicture]) -> dict[str, AnyPicture]:
    """Name pictures, decoded or not, as the runner takes them: content, style, style_2, style_3 and so on."""
    return {"content": content, **dict(zip(name_styles(len(styles)), styles, strict=True))}


def name_styles(count: int) -> list[str]:
    """Name so many styles as the runner takes them: style, style_2 and so on."""
    return ["style", *(f"style_{number}" for number in range(2, count + 1))]


def style_length(bundle: Bundle) -> int:
    """Return the length of an encoded style.

    Raises: BundleInvalid if the bundle does not say it.
    """
    length = bundle.tensor(GENERATOR_NAME, "style").shape[-1]
    if not isinstance(length, int):
        raise BundleInvalid(f"{bundle.folder}/{DESCRIPTION_NAME}: 'style' of {GENERATOR_NAME} ends in no number")
    return length


def check_memory(content: Image, free: int) -> None:
    """Check that a picture can be painted in `free` bytes: without memory, the process would be killed in the middle.

    Raises: ImageRejected ("too_large").
    """
    height, width = content.shape[:2]
    needed = BYTES_PER_PIXEL * height * width
    if needed > free:
        raise ImageRejected(
            "too_large",
            f"a content of {width} x {height} px takes {needed / 2**30:.1f} GiB to paint as a whole, and "
            f"{free / 2**30:.1f} GiB are free; make it smaller",
        )


def reduce_picture(picture: Image, side: int) -> Image:
    """Make a picture smaller, if need be, so that its shorter side has `side` px."""
    height, width = picture.shape[:2]
    scale = side / min(height, width)
    if scale >= 1:
        return picture
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8)
