"""Options of `fusionray import`, and how the layout of a published model (`--like`) fills them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from fusionray.bundle.description import Level, TensorDescription, per_channel
from fusionray.config import Section, in_unit, merge_trees, parse_overrides, read_yaml, validate
from fusionray.errors import ModelRejected
from fusionray.export.published_layouts import list_layouts, read_layout
from fusionray.faces.face import TemplateAnchor

Channels = tuple[float, float, float]


class ValueRange(Section):
    """Value range of a picture: the values of black and white, or mean and deviation of values in 0..1."""

    minimum: Level | None = Field(
        None, description="Value of black: one number, or one per channel.", json_schema_extra=in_unit("")
    )
    maximum: Level | None = Field(
        None, description="Value of white: one number, or one per channel.", json_schema_extra=in_unit("")
    )
    mean: Channels | None = Field(
        None,
        description="Mean that is subtracted from values in 0..1, per channel in the order of the channels.",
        json_schema_extra=in_unit(""),
    )
    deviation: Channels | None = Field(
        None,
        description="Standard deviation that then divides them, per channel.",
        json_schema_extra=in_unit(""),
    )
    order: Literal["rgb", "bgr"] = Field("rgb", description="Order of the colour channels.")

    @model_validator(mode="after")
    def check_pairs(self) -> ValueRange:
        pairs = ((self.minimum, self.maximum), (self.mean, self.deviation))
        if [(low is None) == (high is None) for low, high in pairs] != [True, True] or (self.minimum is None) == (
            self.mean is None
        ):
            raise ValueError("give minimum and maximum, or mean and deviation")
        if self.deviation is not None and min(self.deviation) <= 0:
            raise ValueError("deviation must be positive")
        return self

    def describe(self, shape: tuple[int | str, ...], port: str) -> TensorDescription:
        """Describe a picture input or output in this range."""
        low, high = self.bounds()
        return TensorDescription(meaning="picture", shape=shape, minimum=low, maximum=high, order=self.order, port=port)

    def bounds(self) -> tuple[Level, Level]:
        """Return the values of black, (0 - mean) / deviation, and of white, (1 - mean) / deviation."""
        if self.mean is None or self.deviation is None:
            assert self.minimum is not None
            assert self.maximum is not None
            return self.minimum, self.maximum
        pairs = list(zip(per_channel(self.mean), per_channel(self.deviation), strict=True))
        red, green, blue = (-mean / deviation for mean, deviation in pairs)
        low = (red, green, blue)
        red, green, blue = ((1.0 - mean) / deviation for mean, deviation in pairs)
        return low, (red, green, blue)


class EmbeddingOptions(Section):
    """How an embedding is converted for the generator."""

    unit_before: bool = Field(True, description="Scale the embedding to unit length first.")
    matrix: str = Field(
        "auto",
        description="Matrix that multiplies the embedding. 'auto': the one stored unused in the model; 'none'; or a "
        ".npy file.",
    )
    converter: str | None = Field(
        None, description="ONNX file that converts the embedding into that of another encoder."
    )
    unit_after: bool | None = Field(None, description="Scale the result to unit length; null: only after a matrix.")


class PortNames(Section):
    """Names of inputs and outputs in the graph, needed if their shapes do not determine their roles."""

    source: str | None = Field(None, description="Input that takes the source.")
    target: str | None = Field(None, description="Input that takes the target.")
    output: str | None = Field(None, description="Output that holds the fused picture.")
    mask: str | None = Field(None, description="Output that holds the mask.")


class ImportConfig(Section):
    """Settings of an import: files, name, licence, and what the ONNX graphs do not contain."""

    listed_by: ClassVar[str] = "fusionray import --settings"

    generator: str = Field(description="ONNX file of the face swapper.")
    identity: str | None = Field(
        None, description="ONNX file of its ArcFace encoder; not for models whose source is a picture."
    )
    output: str = Field(description="Folder of the bundle.")
    licence: str | None = Field(
        None, description="Licence of the weights, as an SPDX identifier if there is one; must be given."
    )
    name: str | None = Field(None, description="Name of the model; null: the name of its file.")
    template: str | None = Field(None, description="Alignment template of the target crops.")
    template_anchor: TemplateAnchor = Field(
        "edge",
        description="What stays in place when a template is enlarged to a crop. 'edge': the edge of the crop, so that "
        "every size shows the same; 'first_pixel': the centre of its first pixel, as FaceFusion and SimSwap cut crops.",
    )
    size: int | None = Field(None, gt=0, description="Side of the target crop, if the model accepts any.")
    source_kind: Literal["embedding", "picture"] | None = Field(None, description="What the model takes as its source.")
    source_template: str | None = Field(
        None, description="Alignment template of the source crops; encoders take arcface_112."
    )
    source_size: int | None = Field(None, gt=0, description="Side of the source crop, if the model accepts any.")
    target: ValueRange | None = Field(None, description="Value range of the target.")
    produced: ValueRange | None = Field(None, description="Value range of the output; null: that of the target.")
    source: ValueRange | None = Field(None, description="Value range of a source picture; null: that of the target.")
    mask: tuple[float, float] = Field(
        (0.0, 1.0),
        description="Values of the mask where nothing and where everything is replaced.",
        json_schema_extra=in_unit(""),
    )
    encoder: ValueRange | None = Field(None, description="Value range of the encoder's input; null: as its graph says.")
    embedding: EmbeddingOptions = EmbeddingOptions()
    ports: PortNames = PortNames()


def load_import_config(
    *, like: str | None, file: str | Path | None = None, overrides: Sequence[str] = ()
) -> ImportConfig:
    """Merge the options: the layout `like`, then `file`, then `overrides`; later ones override earlier ones.

    Raises: ConfigInvalid naming the option.
    """
    from_file = read_yaml(Path(file)) if file is not None else {}
    tree = merge_trees(read_layout(like), from_file) if like else from_file
    return validate(ImportConfig, merge_trees(tree, parse_overrides(overrides)), str(file or "the command line"))


def require(value: Any, name: str, option: str) -> Any:
    """Return a value that the graph does not contain and an option must give.

    Raises: ModelRejected naming the option, if the value is None.
    """
    if value is None:
        raise ModelRejected(
            f"{name} cannot be read from the model; set it with {option}, or --like one of {', '.join(list_layouts())}"
        )
    return value
