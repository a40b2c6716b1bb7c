"""Settings of inference, which the command line, serving and evaluation share."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fusionray.config import Section, in_unit

EngineName = Literal["onnxruntime", "openvino"]
ComputePrecision = Literal["fp32", "bf16", "fp16"]
PixelBoost = Literal[1, 2, 4]
"""How many times the model's size a fused face has at most, a side."""
# The engine cache that the hardware chooses.
AUTO = "auto"
OptionValue = bool | int | float | str


class RuntimeConfig(Section):
    """Engine, execution providers, precision, threads and engine cache of a model."""

    listed_by: ClassVar[str] = "fusionray compile --settings"

    engine: Literal["auto"] | EngineName = Field(
        default="auto", description="Inference engine; auto: openvino for bf16 or fp16 on a CPU, else onnxruntime."
    )
    providers: tuple[str, ...] | Literal["auto"] = Field(
        default="auto", description="Execution providers of ONNX Runtime, in order of preference."
    )
    provider_options: dict[str, dict[str, OptionValue]] = Field(
        default={},
        description="Options by provider, or by 'openvino'; they win over the defaults chosen for the hardware.",
    )
    precision: Literal["auto"] | ComputePrecision = Field(
        default="auto", description="Compute precision; auto: fp32 on a CPU, TF32 or fp16 on a GPU."
    )
    allow_fallback: bool = Field(
        default=False, description="Continue with a warning on another provider if one does not start."
    )
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads of a model; null: every CPU, or one when a GPU computes."
    )
    memory_plans: bool = Field(
        default=True,
        description="Let ONNX Runtime plan its memory for each size of inputs. Tiles are painted without: the plans of "
        "three sizes took 40 % more memory, and no less time.",
    )
    batches: tuple[int, ...] = Field(
        default=(),
        description="Batch sizes to prepare for; other sizes run as well (with TensorRT, up to the largest).",
        json_schema_extra=in_unit("images"),
    )
    workspace_gib: float = Field(default=2.0, ge=1, le=4, description="Memory that TensorRT may use to build engines.")
    device_memory_gib: float | None = Field(
        default=None, gt=0, description="GPU memory that CUDA may use; null: no limit."
    )
    cache: str | None = Field(
        default=AUTO,
        description="Folder of compiled engines, local or shared; auto: for TensorRT, which builds one for minutes, in "
        "the user's folder of caches, else none; null: no cache.",
    )
    cache_gib: float = Field(
        default=8.0, gt=0, description="Largest size of the cache; the least recently used engines are deleted first."
    )
    cache_stale_seconds: float = Field(
        default=120.0,
        ge=0.5,
        description="Time without a heartbeat after which a builder on another host counts as dead.",
    )
    cache_wait_seconds: float = Field(
        default=1800.0,
        ge=0,
        description="Longest wait for an engine that another process builds; then the model runs without the cache.",
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
