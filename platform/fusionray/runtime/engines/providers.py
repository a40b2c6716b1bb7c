"""Choose the execution providers of ONNX Runtime, their order, their precision and their options.

Pure functions of settings and device, so that tests need no GPU. The choices for GPUs have not been measured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from fusionray.errors import ProviderUnavailable
from fusionray.hardware.device import FP16_FROM, TENSORRT_FROM, TF32_FROM, Gpu
from fusionray.runtime.config import ComputePrecision, RuntimeConfig

TENSORRT = "TensorrtExecutionProvider"
CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"
GPU_PROVIDERS = (TENSORRT, CUDA)
# The largest batch of the fuser.
TENSORRT_BATCH = 8
GIB = 2**30

Shapes = Mapping[str, tuple[int | str, ...]]
EffectivePrecision = ComputePrecision | Literal["tf32"]


def order_providers(gpu: Gpu | None, known: Collection[str], *, has_tensorrt: bool) -> tuple[str, ...]:
    """Return the providers for a machine, the preferred first: TensorRT if it can start, CUDA with a GPU, and the CPU.

    `known`: the providers of this build of ONNX Runtime; TensorRT's is among them even without TensorRT installed.
    """
    if gpu is None or CUDA not in known:
        return (CPU,)
    if TENSORRT in known and has_tensorrt and gpu.capability >= TENSORRT_FROM:
        return (TENSORRT, CUDA, CPU)
    return (CUDA, CPU)


def decide_precision(
    settings: RuntimeConfig, provider: str, gpu: Gpu | None, weight_precision: ComputePrecision
) -> EffectivePrecision:
    """Decide the precision of a provider's computation; `weight_precision` is that of the stored weights.

    TensorRT converts a float32 model itself; CUDA and the CPU compute in the precision of the weights.

    Raises: ProviderUnavailable if the provider cannot compute in the precision of the settings.
    """
    capability = gpu.capability if gpu else (0, 0)
    asked = settings.precision
    if provider == TENSORRT and weight_precision == "fp32":
        if asked == "auto":
            return "fp16" if capability >= FP16_FROM else "fp32"
        if asked == "bf16" and capability < TF32_FROM:
            raise ProviderUnavailable(f"{provider}: capability {capability} has no bf16; set precision to fp16 or fp32")
        return asked
    if provider == CUDA and asked == "auto" and weight_precision == "fp32" and capability >= TF32_FROM:
        return "tf32"
    if asked not in ("auto", weight_precision):
        raise ProviderUnavailable(
            f"{provider} computes a model of {weight_precision} weights in {weight_precision}, not in {asked}; leave "
            f"precision at auto, use a model with {asked} weights, or on a CPU install fusionray[openvino]"
        )
    return weight_precision


def choose_options(
    provider: str,
    settings: RuntimeConfig,
    precision: EffectivePrecision,
    shapes: Shapes,
    folder: str | None = None,
    *,
    quantized: bool = False,
) -> dict[str, str]:
    """Choose the options of a provider; those of the settings override them.

    `shapes`: of the model's inputs. `folder`: of TensorRT's engine and timing caches. `quantized`: the model has int8
    operators, which TensorRT refuses unless int8 is enabled.
    Source: ONNX Runtime documentation, CUDA and TensorRT execution providers, configuration options.
    """
    chosen: dict[str, str] = {}
    if provider == TENSORRT:
        chosen = {
            "trt_max_workspace_size": str(int(settings.workspace_gib * GIB)),
            "trt_fp16_enable": flag(precision == "fp16"),
            "trt_bf16_enable": flag(precision == "bf16"),
            "trt_int8_enable": flag(quantized),
            **profile_shapes(shapes, settings.batches),
        }
        if folder is not None:
            chosen |= {
                "trt_engine_cache_enable": "1",
                "trt_engine_cache_path": folder,
                "trt_timing_cache_enable": "1",
                "trt_timing_cache_path": folder,
            }
    elif provider == CUDA:
        chosen = {
            "cudnn_conv_algo_search": "EXHAUSTIVE",
            "cudnn_conv_use_max_workspace": "1",
            "do_copy_in_default_stream": "1",
            "use_tf32": flag(precision != "fp32"),
        }
        if settings.device_memory_gib is not None:
            # With a limit, the arena must not double its size: it would reach the limit half empty.
            chosen |= {
                "gpu_mem_limit": str(int(settings.device_memory_gib * GIB)),
                "arena_extend_strategy": "kSameAsRequested",
            }
    overrides = settings.provider_options.get(provider, {})
    return chosen | {key: flag(value) if isinstance(value, bool) else str(value) for key, value in overrides.items()}


def choose_device(provider: str, settings: RuntimeConfig) -> int:
    """Return the index of the GPU on which a provider computes: its option `device_id`, or 0."""
    return int(settings.provider_options.get(provider, {}).get("device_id", 0))


def profile_shapes(shapes: Shapes, batches: tuple[int, ...]) -> dict[str, str]:
    """Return TensorRT's shape profile: batches from 1 to the largest, optimised for the largest.

    Empty if dimensions other than the batch are dynamic.
    """
    if any(isinstance(size, str) for shape in shapes.values() for size in shape[1:]):
        return {}
    largest = max(batches, default=TENSORRT_BATCH)

    def write(batch: int) -> str:
        rows = {name: (batch if isinstance(shape[0], str) else shape[0], *shape[1:]) for name, shape in shapes.items()}
        return ",".join(f"{name}:{'x'.join(str(size) for size in row)}" for name, row in rows.items())

    return {
        "trt_profile_min_shapes": write(1),
        "trt_profile_opt_shapes": write(largest),
        "trt_profile_max_shapes": write(largest),
    }


def flag(value: bool) -> str:
    return "1" if value else "0"
