"""Providers, precision and options for each device; pure functions choose them, so no GPU is needed."""

from __future__ import annotations

import pytest

from fusionray.errors import ProviderUnavailable
from fusionray.hardware.device import Gpu, count_cpus, describe_cpu, parse_cpu
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.providers import (
    CPU,
    CUDA,
    TENSORRT,
    choose_device,
    choose_options,
    decide_precision,
    order_providers,
    profile_shapes,
)
from fusionray.runtime.engines.session import build_session_options

ALL = (TENSORRT, CUDA, CPU)
PASCAL, TURING, ADA = (Gpu("card", capability, 13000) for capability in ((6, 1), (7, 5), (8, 9)))
SHAPES = {"source": ("N", 512), "target": ("N", 3, 64, 64)}


@pytest.mark.parametrize(
    ("gpu", "known", "has_tensorrt", "wanted"),
    [
        (ADA, ALL, True, (TENSORRT, CUDA, CPU)),
        (ADA, ALL, False, (CUDA, CPU)),
        (ADA, (CUDA, CPU), True, (CUDA, CPU)),
        (PASCAL, ALL, True, (CUDA, CPU)),
        (ADA, (CPU,), True, (CPU,)),
        (None, ALL, True, (CPU,)),
    ],
)
def test_providers_are_ordered_by_what_can_run(
    gpu: Gpu | None, known: tuple[str, ...], has_tensorrt: bool, wanted: tuple[str, ...]
) -> None:
    assert order_providers(gpu, known, has_tensorrt=has_tensorrt) == wanted


@pytest.mark.parametrize(
    ("provider", "gpu", "asked", "stored", "computed"),
    [
        (TENSORRT, ADA, "auto", "fp32", "fp16"),
        (TENSORRT, PASCAL, "auto", "fp32", "fp32"),
        (TENSORRT, ADA, "fp32", "fp32", "fp32"),
        (TENSORRT, ADA, "bf16", "fp32", "bf16"),
        (TENSORRT, ADA, "auto", "fp16", "fp16"),
        (CUDA, ADA, "auto", "fp32", "tf32"),
        (CUDA, ADA, "fp32", "fp32", "fp32"),
        (CUDA, TURING, "auto", "fp32", "fp32"),
        (CUDA, ADA, "auto", "fp16", "fp16"),
        (CPU, None, "auto", "fp32", "fp32"),
    ],
)
def test_auto_precision_follows_the_device(
    provider: str, gpu: Gpu | None, asked: str, stored: str, computed: str
) -> None:
    assert decide_precision(RuntimeConfig(precision=asked), provider, gpu, stored) == computed


@pytest.mark.parametrize(
    ("provider", "gpu", "asked"), [(TENSORRT, TURING, "bf16"), (CUDA, ADA, "fp16"), (CPU, None, "bf16")]
)
def test_an_unsupported_precision_is_refused(provider: str, gpu: Gpu | None, asked: str) -> None:
    with pytest.raises(ProviderUnavailable, match=rf"{provider}.*{asked}"):
        decide_precision(RuntimeConfig(precision=asked), provider, gpu, "fp32")


def test_tensorrt_options_are_workspace_precision_profile_and_cache_folder() -> None:
    settings = RuntimeConfig(workspace_gib=3, batches=(4, 1))
    options = choose_options(TENSORRT, settings, "fp16", SHAPES, "/somewhere")
    assert options == {
        "trt_max_workspace_size": str(3 * 2**30),
        "trt_fp16_enable": "1",
        "trt_bf16_enable": "0",
        "trt_int8_enable": "0",
        "trt_profile_min_shapes": "source:1x512,target:1x3x64x64",
        "trt_profile_opt_shapes": "source:4x512,target:4x3x64x64",
        "trt_profile_max_shapes": "source:4x512,target:4x3x64x64",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "/somewhere",
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": "/somewhere",
    }


def test_tensorrt_takes_int8_operators_of_a_quantized_model_only() -> None:
    options = choose_options(TENSORRT, RuntimeConfig(), "fp32", SHAPES, quantized=True)
    assert options["trt_int8_enable"] == "1"
    assert "trt_int8_enable" not in choose_options(CUDA, RuntimeConfig(), "fp32", SHAPES, quantized=True)


def test_values_are_bound_to_the_device_of_the_provider() -> None:
    settings = RuntimeConfig(provider_options={CUDA: {"device_id": 2}})
    assert (choose_device(CUDA, settings), choose_device(TENSORRT, settings)) == (2, 0)


def test_there_is_no_profile_if_other_dimensions_are_dynamic() -> None:
    assert profile_shapes({"target": ("N", 3, "H", "W")}, (1,)) == {}


def test_cuda_options_are_exhaustive_search_and_the_memory_limit() -> None:
    options = choose_options(CUDA, RuntimeConfig(device_memory_gib=1.5), "fp32", {})
    assert options["cudnn_conv_algo_search"] == "EXHAUSTIVE"
    assert options["gpu_mem_limit"] == str(3 * 2**29)
    assert options["use_tf32"] == "0"
    assert "gpu_mem_limit" not in choose_options(CUDA, RuntimeConfig(), "tf32", {})


def test_options_of_the_settings_override_the_defaults() -> None:
    settings = RuntimeConfig(provider_options={CUDA: {"cudnn_conv_algo_search": "HEURISTIC", "use_tf32": True}})
    options = choose_options(CUDA, settings, "fp32", {})
    assert (options["cudnn_conv_algo_search"], options["use_tf32"]) == ("HEURISTIC", "1")


def test_with_a_gpu_one_thread_is_the_default() -> None:
    assert build_session_options(RuntimeConfig(), [CUDA, CPU]).intra_op_num_threads == 1
    assert build_session_options(RuntimeConfig(), [CPU]).intra_op_num_threads == count_cpus()
    assert build_session_options(RuntimeConfig(threads=3), [CUDA, CPU]).intra_op_num_threads == 3


def test_a_cpu_is_described_by_its_first_processor() -> None:
    x86 = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: sse avx\n\nprocessor\t: 1\nmodel name\t: other\n"
    arm = "processor\t: 0\nFeatures\t: fp asimd\nCPU part\t: 0xd40\n"
    assert parse_cpu("x86_64", x86) == type(describe_cpu())("x86_64", "AMD EPYC", ("avx", "sse"))
    assert parse_cpu("aarch64", arm) == type(describe_cpu())("aarch64", "0xd40", ("asimd", "fp"))
    assert describe_cpu().flags
