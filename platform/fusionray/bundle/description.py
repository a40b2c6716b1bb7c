"""The schema of `bundle.json`, which tells the runtime how to run the models of a bundle.

Format 1 has fewer fields than format 2; for its bundles the others have their defaults: ports named as their roles,
RGB, one value range for all channels, an embedding of unit length, a mask, a dynamic batch.

`task` selects the runner of the runtime; without it, the task is face fusion. Bundles of other tasks have no fields
about faces.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from fusionray.config import Section
from fusionray.errors import BundleInvalid
from fusionray.faces.blending.skin import Skin
from fusionray.faces.face import TemplateAnchor

FORMAT_VERSION: Literal[2] = 2
DESCRIPTION_NAME = "bundle.json"
GENERATOR_NAME = "generator.onnx"
IDENTITY_NAME = "identity.onnx"
PARSER_NAME = "parser.onnx"
EMBEDDING_LENGTH = 512
IDENTITY_SIZE = 112
FACE_FUSION = "face_fusion"
STYLE_TRANSFER = "style_transfer"
STYLE_NAME = "style.onnx"
# Models of style transfer that take tiles of a picture, in the order of the passes over it.
TILE_STYLE_NAME, TILE_CONTENT_NAME = "tile_style.onnx", "tile_content.onnx"
TILE_HALF_NAME, TILE_FULL_NAME = "tile_half.onnx", "tile_full.onnx"
# Roles of outputs; all other roles are inputs.
OUTPUT_ROLES = ("output", "mask")
FACE_FIELDS = ("template", "identity_template", "template_anchor", "skin", "parser", "embedding")

SINCE_FORMAT_2: Any = {
    "embedding": True,
    "variants": True,
    "lineage": {"imported"},
    "tensors": {"__all__": {"__all__": {"order", "port"}}},
}

Meaning = Literal["source", "picture", "mask", "features"]
WeightPrecision = Literal["fp32", "fp16", "int8"]
Level = float | tuple[float, float, float]


class TensorDescription(Section):
    """Name, shape and value range of one input or output of a model.

    `port` is its name in the graph, by default that of its role. `shape` has names for dynamic dimensions; if the batch
    is a number, the model takes no other batch size. In a `picture`, `minimum` is black and `maximum` white, one value
    for all channels or one per channel in `order`; in a `mask`, they are 0 and 1. The values of an encoded `source` lie
    in `minimum..maximum`; `features`, between two models, mostly do.
    """

    meaning: Meaning
    shape: tuple[int | str, ...]
    minimum: Level
    maximum: Level
    order: Literal["rgb", "bgr"] = "rgb"
    port: str | None = None

    @model_validator(mode="after")
    def check_range(self) -> TensorDescription:
        if any(low >= high for low, high in zip(per_channel(self.minimum), per_channel(self.maximum), strict=True)):
            raise ValueError(f"minimum {self.minimum} must lie below maximum {self.maximum}")
        return self


class EmbeddingRule(Section):
    """How the output of `identity.onnx` becomes the `source` input of the generator.

    The embedding is scaled to unit length (`unit_before`), converted by the matrix [E,L] in the file `matrix`
    (embedding @ matrix) or by the model in the file `converter` ([N,E] -> [N,L]), and scaled again (`unit_after`); each
    step is optional.
    """

    unit_before: bool = True
    matrix: str | None = None
    converter: str | None = None
    unit_after: bool = False

    @model_validator(mode="after")
    def check_map(self) -> EmbeddingRule:
        if self.matrix and self.converter:
            raise ValueError("matrix and converter exclude each other")
        return self

    @property
    def file(self) -> str | None:
        """Return the name of the file with the matrix or converter, if there is one."""
        return self.matrix or self.converter


class Lineage(Section):
    """Origin of a model: hash of its data, resolved configuration, version of the code, and metrics.

    `imported`: for a model made elsewhere, the sha256 of each imported file, by file name.
    """

    data_manifest: str
    config: dict[str, Any]
    code_version: str
    metrics: dict[str, float] = Field(default_factory=dict)
    imported: dict[str, str] = Field(default_factory=dict)


class Parity(Section):
    """Largest absolute difference between the outputs of the ONNX and the torch models, and the allowed one."""

    tolerance: float
    largest_difference: float


class Variant(Section):
    """A quantized generator, and its difference from `generator.onnx` on held-out crops.

    Differences are of `output` and `mask` in 0..1; PSNR and SSIM are means of `output` over the crops. `measured_on`:
    where the `crops` crops come from; `quantized`: the operators in int8.
    """

    file: str
    bytes: int
    tolerance: float
    largest_difference: float
    mean_difference: float
    psnr_decibels: float
    ssim: float
    crops: int
    measured_on: str
    quantized: tuple[str, ...] = ()


class ParserDescription(Section):
    """The face parser of a bundle, in the file parser.onnx: which part of a head each pixel shows.

    Its `input` is a picture [N,3,S,S] in [-1,1], aligned to `template`, and its output `parts` [N,P,S,S] the share of
    each of `parts` in each pixel. `size`: S.
    """

    template: str
    size: int = Field(gt=0)
    parts: tuple[str, ...] = Field(min_length=2)


class BundleDescription(Section):
    """The content of `bundle.json`. `tensors` maps file name, then role, to the description of an input or output.

    Roles of face fusion are `source`, `target`, `output` and optionally `mask` of `generator.onnx`, and `input` and
    `source` of `identity.onnx`, which is absent if the `source` is a picture. Source faces are aligned to
    `identity_template`, target faces to `template`; `template_anchor` stays in place when a template is enlarged to the
    size of a crop (`faces/align.py`). `skin`: whose skin fused faces have, unless a request says otherwise; `target`
    for a model that fuses the middle of a face alone. `parser`: what carries the source's skin over the head; None: the
    skin outside of the fused crop stays the target's. Other tasks have `generator.onnx` with any input roles and one
    `output`. `halos`: for models that take tiles of a picture, by file name, the pixels around a tile on which its
    result depends. An imported model has no `parity`. `name` appears in HTTP headers and in the registry, so it is
    ASCII without spaces.
    """

    format_version: Literal[1, 2] = FORMAT_VERSION
    task: str = Field(FACE_FUSION, pattern=r"^[a-z][a-z0-9_]{0,63}$")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    size: int = Field(gt=0)
    template: str = ""
    identity_template: str = "arcface_112"
    template_anchor: TemplateAnchor = "edge"
    skin: Skin = "source"
    parser: ParserDescription | None = None
    tensors: dict[str, dict[str, TensorDescription]]
    embedding: EmbeddingRule = EmbeddingRule()
    licence: str
    lineage: Lineage
    parity: Parity | None = None
    variants: dict[WeightPrecision, Variant] = Field(default_factory=dict)
    halos: dict[str, int] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def check_task(self) -> BundleDescription:
        if self.task == FACE_FUSION:
            if not self.template:
                raise ValueError("template: a bundle of face fusion names the template that targets are cut at")
            return self
        foreign = [name for name in FACE_FIELDS if name in self.model_fields_set]
        if foreign:
            raise ValueError(f"{foreign[0]}: is about faces and has no effect on the task {self.task}; leave it out")
        roles = self.tensors.get(GENERATOR_NAME, {})
        if "output" not in roles or not self.inputs:
            raise ValueError(f"tensors: {GENERATOR_NAME} of the task {self.task} needs an 'output' and an input")
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the description as it is written and hashed.

        Face fusion omits `task` and the defaults of `template_anchor`, `skin` and `parser`, and format 1 omits later
        fields, so that hashes of older bundles stay the same.
        """
        if self.task != FACE_FUSION:
            return self.model_dump(mode="json", exclude={*FACE_FIELDS, *(() if self.halos else ("halos",))})
        omitted = {"task": True, "halos": True, **(SINCE_FORMAT_2 if self.format_version == 1 else {})}
        omitted |= {"template_anchor": self.template_anchor == "edge", "skin": self.skin == "source"}
        if self.parser is None:
            omitted["parser"] = True
        return self.model_dump(mode="json", exclude=omitted)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the roles of the generator's inputs, in alphabetical order; `bundle.json` stores no other order."""
        return tuple(sorted(role for role in self.tensors.get(GENERATOR_NAME, {}) if role not in OUTPUT_ROLES))

    @property
    def models(self) -> tuple[str, ...]:
        """Return the files of the required models; the generator is last."""
        others = sorted(name for name in self.tensors if name != GENERATOR_NAME)
        if self.task == FACE_FUSION:
            others = [] if self.source_is_picture else [IDENTITY_NAME]
        return (*others, GENERATOR_NAME)

    @property
    def source_is_picture(self) -> bool:
        """Return whether the generator takes the source as a picture, not as an embedding."""
        source = self.tensors.get(GENERATOR_NAME, {}).get("source")
        return source is not None and source.meaning == "picture"

    @property
    def required_files(self) -> tuple[str, ...]:
        """Return the names of the files that the bundle needs."""
        mapping = (self.embedding.file,) if self.embedding.file else ()
        parser = (PARSER_NAME,) if self.parser else ()
        return (*reversed(self.models), *parser, *mapping, *(variant.file for variant in self.variants.values()))


def per_channel(level: Level) -> tuple[float, float, float]:
    """Return a level for each of three channels."""
    return level if isinstance(level, tuple) else (level, level, level)


def describe_pictures(size: int, inputs: Iterable[str]) -> dict[str, dict[str, TensorDescription]]:
    """Describe the tensors of a generator with picture inputs and an `output`, all of one size and in [-1,1]."""
    picture = TensorDescription(meaning="picture", shape=("N", 3, size, size), minimum=-1.0, maximum=1.0)
    return {GENERATOR_NAME: dict.fromkeys((*inputs, "output"), picture)}


def describe_tensors(
    size: int, minimum: float, maximum: float, source_length: int = EMBEDDING_LENGTH
) -> dict[str, dict[str, TensorDescription]]:
    """Describe the tensors of a face fusion bundle made by `fusionray export`; pictures lie in `minimum..maximum`."""
    source = TensorDescription(meaning="source", shape=("N", source_length), minimum=-1.0, maximum=1.0)
    picture = TensorDescription(meaning="picture", shape=("N", 3, size, size), minimum=minimum, maximum=maximum)
    mask = TensorDescription(meaning="mask", shape=("N", 1, size, size), minimum=0.0, maximum=1.0)
    crop = TensorDescription(meaning="picture", shape=("N", 3, IDENTITY_SIZE, IDENTITY_SIZE), minimum=-1.0, maximum=1.0)
    return {
        GENERATOR_NAME: {"source": source, "target": picture, "output": picture, "mask": mask},
        IDENTITY_NAME: {"input": crop, "source": source},
    }


def check_name(name: str, where: str) -> None:
    """Refuse a name that is a path, or that of the description.

    Raises: BundleInvalid naming the file.
    """
    if name in ("", ".", "..", DESCRIPTION_NAME) or "/" in name or "\\" in name or "\0" in name:
        raise BundleInvalid(f"{where}: '{name}' cannot be the name of a file in a bundle; use a plain file name")


def parse_description(text: bytes, path: str) -> BundleDescription:
    """Read the content of `bundle.json`; `path` is where it lies.

    Raises: BundleInvalid if it is not understood.
    """
    try:
        return BundleDescription.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"])
        raise BundleInvalid(
            f"{path}: not a description of format 1 to {FORMAT_VERSION} ({key}: {fault['msg']}); export the model again"
        ) from None
