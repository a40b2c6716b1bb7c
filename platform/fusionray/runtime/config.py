"""How models are run: the settings that the command line, serving and evaluation share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from fusionray.config import Section

EngineName = Literal["onnxruntime", "openvino"]
Precision = Literal["fp32", "bf16", "fp16"]
OptionValue = bool | int | float | str


class RuntimeConfig(Section):
    """On what a model runs, and with how much of it."""

    engine: Literal["auto"] | EngineName = Field(
        default="auto", description="Library that computes; auto takes openvino only for bf16 or fp16 on a CPU."
    )
    providers: tuple[str, ...] | Literal["auto"] = Field(
        default="auto", description="Execution providers of ONNX Runtime, the first preferred."
    )
    provider_options: dict[str, dict[str, OptionValue]] = Field(
        default={}, description="Options by provider, or by 'openvino'; they win over what is chosen here."
    )
    precision: Literal["auto"] | Precision = Field(
        default="auto", description="What products are computed in; auto: fp32 on a CPU, TF32 or fp16 on a GPU."
    )
    allow_fallback: bool = Field(default=False, description="Go on with a warning if a provider does not start.")
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads of a model; all CPUs if not given, one beside a GPU."
    )
    batches: tuple[int, ...] = Field(
        default=(), description="Batch sizes to prepare for; others run too (with TensorRT, up to the largest)."
    )
    workspace_gib: float = Field(default=2.0, ge=1, le=4, description="Memory that TensorRT may build engines with.")
    device_memory_gib: float | None = Field(default=None, gt=0, description="Memory that CUDA may take on the GPU.")
    cache: str | None = Field(default=None, description="Folder of built engines, local or shared; None keeps none.")
    cache_gib: float = Field(default=8.0, gt=0, description="Size of that folder; what was not used longest goes.")
    cache_stale_seconds: float = Field(
        default=120.0, ge=0.5, description="A builder on another host that gives no sign for so long is dead."
    )
    cache_wait_seconds: float = Field(
        default=1800.0, ge=0, description="Wait so long for another's build; then go on without the cache."
    )

    @field_validator("providers")
    @classmethod
    def check_providers(cls, value: tuple[str, ...] | str) -> tuple[str, ...] | str:
        if not value:
            raise ValueError("name at least one provider, or write auto")
        return value

    @field_validator("batches")
    @classmethod
    def check_batches(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(size < 1 for size in value):
            raise ValueError("a batch has at least one picture")
        return tuple(sorted(set(value)))

    @model_validator(mode="after")
    def check_engine(self) -> RuntimeConfig:
        if self.engine == "openvino" and self.providers != "auto":
            raise ValueError("providers are those of onnxruntime; leave them at auto with engine openvino")
        return self
