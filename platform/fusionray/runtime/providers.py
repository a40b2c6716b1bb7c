"""Which execution providers of ONNX Runtime are asked for, in which order, and with which options.

Pure functions of settings and device: what they choose for a GPU is tested without one. Not measured on a GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from fusionray.errors import ProviderUnavailable
from fusionray.hardware.device import FP16_FROM, TENSORRT_FROM, TF32_FROM, Gpu
from fusionray.runtime.config import Precision, RuntimeConfig

TENSORRT = "TensorrtExecutionProvider"
CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"
ON_A_GPU = (TENSORRT, CUDA)
# As many faces as the fuser computes at a time.
TENSORRT_BATCH = 8
GIB = 2**30

Shapes = Mapping[str, tuple[int | str, ...]]
Computed = Precision | Literal["tf32"]


def order_providers(gpu: Gpu | None, known: Collection[str], *, has_tensorrt: bool) -> tuple[str, ...]:
    """Order the providers that fit a machine: TensorRT where it can start, CUDA where a GPU is, always the CPU.

    `known` are those that this build of ONNX Runtime has; it has TensorRT's on machines without TensorRT too.
    """
    if gpu is None or CUDA not in known:
        return (CPU,)
    if TENSORRT in known and has_tensorrt and gpu.capability >= TENSORRT_FROM:
        return (TENSORRT, CUDA, CPU)
    return (CUDA, CPU)


def decide_precision(settings: RuntimeConfig, provider: str, gpu: Gpu | None, stored: Precision) -> Computed:
    """Decide what a provider computes in; `stored` is what the weights of the file are.

    TensorRT converts a float32 model itself; CUDA and the CPU compute in what the file holds.

    Raises: ProviderUnavailable if the provider cannot compute in the precision that was asked for.
    """
    capability = gpu.capability if gpu else (0, 0)
    asked = settings.precision
    if provider == TENSORRT and stored == "fp32":
        if asked == "auto":
            return "fp16" if capability >= FP16_FROM else "fp32"
        if asked == "bf16" and capability < TF32_FROM:
            raise ProviderUnavailable(f"{provider}: capability {capability} multiplies no bf16; ask for fp16 or fp32")
        return asked
    if provider == CUDA and asked == "auto" and stored == "fp32" and capability >= TF32_FROM:
        return "tf32"
    if asked not in ("auto", stored):
        raise ProviderUnavailable(
            f"{provider} computes a model of {stored} weights in {stored}, not in {asked}; leave precision at auto, "
            "open a model with such weights, or on a CPU install openvino (fusionray[openvino])"
        )
    return stored


def choose_options(
    provider: str, settings: RuntimeConfig, precision: Computed, shapes: Shapes, folder: str | None = None
) -> dict[str, str]:
    """Choose the options of a provider; those of the settings win.

    `shapes` are those of the model's inputs. `folder` is where TensorRT keeps what it builds.
    Source: ONNX Runtime documentation, CUDA and TensorRT execution providers, configuration options.
    """
    chosen: dict[str, str] = {}
    if provider == TENSORRT:
        chosen = {
            "trt_max_workspace_size": str(int(settings.workspace_gib * GIB)),
            "trt_fp16_enable": flag(precision == "fp16"),
            "trt_bf16_enable": flag(precision == "bf16"),
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
            # Under a limit the arena must not double what it takes: it would run into the limit half empty.
            chosen |= {
                "gpu_mem_limit": str(int(settings.device_memory_gib * GIB)),
                "arena_extend_strategy": "kSameAsRequested",
            }
    wished = settings.provider_options.get(provider, {})
    return chosen | {key: flag(value) if isinstance(value, bool) else str(value) for key, value in wished.items()}


def profile_shapes(shapes: Shapes, batches: tuple[int, ...]) -> dict[str, str]:
    """Tell TensorRT the batches from 1 to the largest, tuned for the largest; none if other sizes vary as well."""
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
