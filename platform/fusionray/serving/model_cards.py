"""The served models: which bundle answers for a name, and what `GET /v1/models` tells about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from fusionray.bundle.description import FACE_FUSION, WeightPrecision


@dataclass(frozen=True)
class ModelVersion:
    """The bundle to which a model's name resolves, and which of its generators runs.

    `task` is that of the bundle, `inputs` names the pictures that it takes.
    """

    name: str
    location: str
    bundle: str
    share: float = 0.0
    precision: WeightPrecision = "fp32"
    task: str = FACE_FUSION
    inputs: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Identify the version: name, hash of its bundle, precision."""
        return f"{self.name}@{self.bundle[:16]}-{self.precision}"


# What the OpenAPI document says of the fields of model cards.
ModelName = Annotated[str, Field(description="Name by which clients ask for the model.", examples=["default"])]
ModelTitle = Annotated[str, Field(description="Name that its bundle has.", examples=["fast-128"])]
ModelSize = Annotated[
    int, Field(description="Side of the pictures or crops that it computes, in pixels.", examples=[128])
]
Template = Annotated[str, Field(description="How faces are aligned for it.", examples=["arcface_128"])]
TaskName = Annotated[str, Field(description="What it does, which names its route.", examples=["colours"])]
InputNames = Annotated[tuple[str, ...], Field(description="The pictures that it takes, by their field of the form.")]
BundleHash = Annotated[str, Field(description="Hash of its bundle, hexadecimal.", examples=["5e" * 32])]
Licence = Annotated[str, Field(description="Licence of its weights.", examples=["Apache-2.0"])]
Provider = Annotated[str, Field(description="Execution provider that runs it.", examples=["CPUExecutionProvider"])]
Providers = Annotated[tuple[str, ...], Field(description="Providers that may run it, the preferred one first.")]
Threads = Annotated[int, Field(description="Threads that compute one batch.", examples=[2])]
Runtime = Annotated[str, Field(description="Library that runs it.", examples=["onnxruntime"])]
Precision = Annotated[str, Field(description="Which of its generators runs.", examples=["fp32"])]
IsDefault = Annotated[bool, Field(description="Whether it answers requests that name no model.")]
Share = Annotated[float, Field(description="Share of its requests that it answers, if it is a canary.")]
CANARY = Field(description="A second bundle that answers a share of the requests; null: none.")
MODELS = Field(description="The served models, the default first.")


@dataclass(frozen=True)
class ModelCard:
    """What `GET /v1/models` tells about a model in use. `share` is the part of its requests that a canary answers."""

    name: ModelName
    title: ModelTitle
    size: ModelSize
    template: Template
    bundle: BundleHash
    licence: Licence
    provider: Provider
    providers: Providers
    threads: Threads
    runtime: Runtime
    precision: Precision = "fp32"
    default: IsDefault = False
    share: Share = 1.0
    canary: Annotated[ModelCard | None, CANARY] = None


@dataclass(frozen=True)
class PictureModelCard:
    """The same about a model of another task than face fusion: no template, but the task and the inputs by name."""

    name: ModelName
    title: ModelTitle
    task: TaskName
    inputs: InputNames
    size: ModelSize
    bundle: BundleHash
    licence: Licence
    provider: Provider
    providers: Providers
    threads: Threads
    runtime: Runtime
    precision: Precision = "fp32"
    default: IsDefault = False
    share: Share = 1.0
    canary: Annotated[PictureModelCard | None, CANARY] = None


AnyModelCard = ModelCard | PictureModelCard


@dataclass(frozen=True)
class ModelList:
    """What `GET /v1/models` answers, the default first."""

    models: Annotated[list[ModelCard], MODELS]


@dataclass(frozen=True)
class AnyModelList:
    """The same where models of other tasks than face fusion are served."""

    models: Annotated[list[ModelCard | PictureModelCard], MODELS]
