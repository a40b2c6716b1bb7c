"""What must be said of a model that was made elsewhere: options of `fusionray import`, known contracts for `--like`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, model_validator

from fusionray.bundle.description import Level, TensorDescription, spread
from fusionray.config import Section, merge_trees, parse_overrides, read_yaml, validate
from fusionray.errors import ConfigInvalid, ModelRejected

Channels = tuple[float, float, float]


class Levels(Section):
    """How a model writes pictures: the values of black and white, or the mean and deviation of what lies in 0..1."""

    minimum: Level | None = None
    maximum: Level | None = None
    mean: Channels | None = Field(None, description="subtracted from values in 0..1, as the channels are ordered")
    deviation: Channels | None = Field(None, description="what they are divided by then")
    order: Literal["rgb", "bgr"] = "rgb"

    @model_validator(mode="after")
    def check_pairs(self) -> Levels:
        pairs = ((self.minimum, self.maximum), (self.mean, self.deviation))
        if [(low is None) == (high is None) for low, high in pairs] != [True, True] or (self.minimum is None) == (
            self.mean is None
        ):
            raise ValueError("give minimum and maximum, or mean and deviation")
        if self.deviation is not None and min(self.deviation) <= 0:
            raise ValueError("deviation must be positive")
        return self

    def describe(self, shape: tuple[int | str, ...], port: str) -> TensorDescription:
        """Describe an input or output that is written so."""
        low, high = self.bounds()
        return TensorDescription(meaning="picture", shape=shape, minimum=low, maximum=high, order=self.order, port=port)

    def bounds(self) -> tuple[Level, Level]:
        """Give the values of black, (0 - mean) / deviation, and white, (1 - mean) / deviation."""
        if self.mean is None or self.deviation is None:
            assert self.minimum is not None
            assert self.maximum is not None
            return self.minimum, self.maximum
        pairs = list(zip(spread(self.mean), spread(self.deviation), strict=True))
        red, green, blue = (-mean / deviation for mean, deviation in pairs)
        low = (red, green, blue)
        red, green, blue = ((1.0 - mean) / deviation for mean, deviation in pairs)
        return low, (red, green, blue)


class EmbeddingOptions(Section):
    """What an embedding goes through on its way to the generator."""

    unit_before: bool = Field(True, description="scale it to unit length first")
    matrix: str = Field("auto", description="'auto': the one that the model carries unused; 'none'; or a .npy file")
    converter: str | None = Field(None, description="ONNX file that turns it into one of another encoder")
    unit_after: bool | None = Field(None, description="scale what comes out; default: after a matrix")


class Ports(Section):
    """Names of inputs and outputs, where shapes do not tell them apart."""

    source: str | None = None
    target: str | None = None
    output: str | None = None
    mask: str | None = None


class ImportConfig(Section):
    """What is imported, under which name, and what the graphs do not say."""

    generator: str = Field(description="ONNX file of the face swapper")
    identity: str | None = Field(
        None, description="ONNX file of its ArcFace encoder; not for a source that is a picture"
    )
    output: str = Field(description="folder of the bundle")
    licence: str | None = Field(None, description="licence of the weights, as an SPDX identifier where there is one")
    name: str | None = Field(None, description="name of the model; default: that of its file")
    template: str | None = Field(None, description="template at which targets are cut")
    size: int | None = Field(None, gt=0, description="size of a target's crop, where the model leaves it open")
    source_kind: Literal["embedding", "picture"] | None = Field(None, description="what stands for a source")
    source_template: str | None = Field(None, description="template at which sources are cut; arcface_112 for encoders")
    source_size: int | None = Field(None, gt=0, description="size of a source's crop, where the model leaves it open")
    target: Levels | None = Field(None, description="how the target is written")
    produced: Levels | None = Field(None, description="how the output is written; default: as the target")
    source: Levels | None = Field(None, description="how a source that is a picture is written; default: as the target")
    mask: tuple[float, float] = Field((0.0, 1.0), description="values of the mask where nothing and all is replaced")
    encoder: Levels | None = Field(None, description="how the encoder's input is written; default: as its graph says")
    embedding: EmbeddingOptions = EmbeddingOptions()
    ports: Ports = Ports()


def load_import_config(
    *, like: str | None, file: str | Path | None = None, overrides: Sequence[str] = ()
) -> ImportConfig:
    """Put the options together: a known contract, then the file, then overrides, the later winning.

    Raises: ConfigInvalid naming the option.
    """
    from_file = read_yaml(Path(file)) if file is not None else {}
    tree = merge_trees(read_contract(like), from_file) if like else from_file
    return validate(ImportConfig, merge_trees(tree, parse_overrides(overrides)), str(file or "the command line"))


def read_layouts() -> dict[str, dict[str, Any]]:
    tree: dict[str, dict[str, Any]] = yaml.safe_load(
        files("fusionray.export").joinpath("import_layouts.yaml").read_text("utf-8")
    )
    return tree


def list_layouts() -> list[str]:
    """Name the contracts that the package knows."""
    return sorted(read_layouts())


def read_contract(name: str) -> dict[str, Any]:
    """Read what is known of the models of a name, as a part of `ImportConfig`.

    Raises: ConfigInvalid naming the contracts there are.
    """
    table = read_layouts()
    if name not in table:
        raise ConfigInvalid(f"--like {name}: not known; there are {', '.join(sorted(table))}")
    return {key: value for key, value in table[name].items() if key not in ("facts", "encoder_note")}


def require(value: Any, what: str, option: str) -> Any:
    """Give a value that a graph does not hold.

    Raises: ModelRejected naming the option by which it is given.
    """
    if value is None:
        raise ModelRejected(
            f"{what} cannot be read from the model; say it with {option}, or --like one of {', '.join(list_layouts())}"
        )
    return value
