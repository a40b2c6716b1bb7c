"""What a bundle says of itself: the content of `bundle.json`, from which the runtime learns how to drive the models.

Format 2 says more than format 1, whose bundles are those where all of it has its default: ports named as their roles,
RGB, one range for all channels, an embedding of unit length, a mask, a batch of any number.

`task` says what the models are for, and so which runner of the runtime drives them. Bundles that name none are those of
face fusion. What concerns faces only is neither asked of other tasks nor written for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field, model_validator

from fusionray.config import Section

FORMAT_VERSION: Literal[2] = 2
GENERATOR_NAME = "generator.onnx"
IDENTITY_NAME = "identity.onnx"
EMBEDDING_LENGTH = 512
IDENTITY_SIZE = 112
FACE_FUSION = "face_fusion"
# Roles of a model that are its outputs; whatever else is described is an input.
OUTPUT_ROLES = ("output", "mask")
FACE_FIELDS = ("template", "identity_template", "embedding")

SINCE_FORMAT_2: Any = {
    "embedding": True,
    "variants": True,
    "lineage": {"imported"},
    "tensors": {"__all__": {"__all__": {"order", "port"}}},
}

Meaning = Literal["source", "picture", "mask"]
WeightPrecision = Literal["fp32", "fp16", "int8"]
Level = float | tuple[float, float, float]


class TensorDescription(Section):
    """What one input or output of a model holds.

    `port` is its name in the graph; that of its role if not given. `shape` uses names for sizes that vary; a batch that
    is a number is the only one that the model takes. Of a `picture`, `minimum` is the value of black and `maximum` that
    of white, one for all channels or one for each, as the channels are ordered; of a `mask`, those of 0 and 1. An
    embedding, the beginning of a `source`, has no levels: its values lie in `minimum..maximum`.
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
    """How the embedding that `identity.onnx` gives becomes the source that the generator takes.

    It is scaled to unit length (`unit_before`), goes through the matrix [E,L] in the file `matrix` (embedding @ matrix)
    or the model in the file `converter` ([N,E] -> [N,L]), and is scaled again (`unit_after`); each step only if named.
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
        """Name the file of the bundle that maps the embedding, if one does."""
        return self.matrix or self.converter


class Lineage(Section):
    """Where a model comes from: the digest of its data, its resolved configuration, the code, and how it scored.

    A model that was made elsewhere says so by `imported`: the sha256 of each file that it came in, by file name.
    """

    data_manifest: str
    config: dict[str, Any]
    code_version: str
    metrics: dict[str, float] = Field(default_factory=dict)
    imported: dict[str, str] = Field(default_factory=dict)


class Parity(Section):
    """How far the exported models are from the trained ones: largest absolute difference, and what was allowed."""

    tolerance: float
    largest_difference: float


class Variant(Section):
    """The generator in fewer bits, and how far it is from `generator.onnx` on crops that it did not learn from.

    Differences are of `output` and `mask` in 0..1; PSNR and SSIM are of `output`, the mean over the crops. `judged_on`
    says what the crops were; `quantized` which operators are in eight bits.
    """

    file: str
    bytes: int
    tolerance: float
    largest_difference: float
    mean_difference: float
    psnr_decibels: float
    ssim: float
    crops: int
    judged_on: str
    quantized: tuple[str, ...] = ()


class BundleDescription(Section):
    """The content of `bundle.json`. `tensors` maps file name, then role, to what that input or output holds.

    Roles of face fusion are `source`, `target`, `output` and, if there is one, `mask` of `generator.onnx`, and `input`
    and `source` of `identity.onnx`, which a bundle whose `source` is a picture does without. A source's face is cut at
    `identity_template`, a target's at `template`. Any other task has `generator.onnx` with inputs of its own naming and
    one `output`. A model that was made elsewhere has no `parity`.
    `name` travels in HTTP headers and registry entries, so it is plain ASCII without spaces.
    """

    format_version: Literal[1, 2] = FORMAT_VERSION
    task: str = Field(FACE_FUSION, pattern=r"^[a-z][a-z0-9_]{0,63}$")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    size: int = Field(gt=0)
    template: str = ""
    identity_template: str = "arcface_112"
    tensors: dict[str, dict[str, TensorDescription]]
    embedding: EmbeddingRule = EmbeddingRule()
    licence: str
    lineage: Lineage
    parity: Parity | None = None
    variants: dict[WeightPrecision, Variant] = Field(default_factory=dict)
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

    def tree(self) -> dict[str, Any]:
        """Give it as it is written, and hashed.

        A bundle of face fusion does not name its task, and one of format 1 has only what that format knew: the hashes
        of bundles that are in use stay.
        """
        if self.task != FACE_FUSION:
            return self.model_dump(mode="json", exclude=set(FACE_FIELDS))
        unknown_then = SINCE_FORMAT_2 if self.format_version == 1 else {}
        return self.model_dump(mode="json", exclude={"task": True, **unknown_then})

    @property
    def inputs(self) -> tuple[str, ...]:
        """Name the inputs of the generator by their roles, in alphabetical order: `bundle.json` keeps no other."""
        return tuple(sorted(role for role in self.tensors.get(GENERATOR_NAME, {}) if role not in OUTPUT_ROLES))

    @property
    def models(self) -> tuple[str, ...]:
        """Name the files that hold a model without which nothing runs, the one that makes the picture last."""
        others = sorted(name for name in self.tensors if name != GENERATOR_NAME)
        if self.task == FACE_FUSION:
            others = [] if self.source_is_picture else [IDENTITY_NAME]
        return (*others, GENERATOR_NAME)

    @property
    def source_is_picture(self) -> bool:
        """Tell whether the generator sees the source as a picture, not through an embedding."""
        source = self.tensors.get(GENERATOR_NAME, {}).get("source")
        return source is not None and source.meaning == "picture"

    @property
    def required_files(self) -> tuple[str, ...]:
        """Name the files without which the bundle cannot be run."""
        mapping = (self.embedding.file,) if self.embedding.file else ()
        return (*reversed(self.models), *mapping, *(variant.file for variant in self.variants.values()))


def per_channel(level: Level) -> tuple[float, float, float]:
    """Give a level for each of three channels."""
    return level if isinstance(level, tuple) else (level, level, level)


def describe_pictures(size: int, inputs: Iterable[str]) -> dict[str, dict[str, TensorDescription]]:
    """Describe the tensors of a bundle from named pictures to an `output`, all of one size and in [-1,1]."""
    picture = TensorDescription(meaning="picture", shape=("N", 3, size, size), minimum=-1.0, maximum=1.0)
    return {GENERATOR_NAME: dict.fromkeys((*inputs, "output"), picture)}


def describe_tensors(
    size: int, minimum: float, maximum: float, source_length: int = EMBEDDING_LENGTH
) -> dict[str, dict[str, TensorDescription]]:
    """Describe the tensors of a bundle made here; the generator's pictures lie in `minimum..maximum`."""
    source = TensorDescription(meaning="source", shape=("N", source_length), minimum=-1.0, maximum=1.0)
    picture = TensorDescription(meaning="picture", shape=("N", 3, size, size), minimum=minimum, maximum=maximum)
    mask = TensorDescription(meaning="mask", shape=("N", 1, size, size), minimum=0.0, maximum=1.0)
    crop = TensorDescription(meaning="picture", shape=("N", 3, IDENTITY_SIZE, IDENTITY_SIZE), minimum=-1.0, maximum=1.0)
    return {
        GENERATOR_NAME: {"source": source, "target": picture, "output": picture, "mask": mask},
        IDENTITY_NAME: {"input": crop, "source": source},
    }
