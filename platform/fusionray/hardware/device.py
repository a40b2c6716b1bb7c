"""Describe the CPU and the GPU without torch: the CPU from /proc, the GPU from its driver."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
# CUdevice_attribute, from cuda.h.
CAPABILITY_MAJOR = 75
CAPABILITY_MINOR = 76
# Tensor cores multiply fp16 from Volta on, TF32 from Ampere on (white papers; hardware/profiles.yaml has all of them).
FP16_FROM = (7, 0)
TF32_FROM = (8, 0)
# TensorRT 10 needs Turing or newer. Source: NVIDIA TensorRT 10 support matrix.
TENSORRT_FROM = (7, 5)


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU: name, compute capability, and the CUDA version of its driver."""

    name: str
    capability: tuple[int, int]
    driver: int


@dataclass(frozen=True)
class Cpu:
    """A CPU: machine as in uname, model, and instruction sets as Linux names them, in alphabetical order."""

    machine: str
    model: str
    flags: tuple[str, ...]


def describe_cpu() -> Cpu:
    """Describe the CPU of this machine."""
    return parse_cpu(os.uname().machine, CPU_INFO.read_text(encoding="utf-8", errors="replace"))


def parse_cpu(machine: str, text: str) -> Cpu:
    """Read the first processor of /proc/cpuinfo; x86 calls instruction sets `flags`, Arm `Features`."""
    pairs = [line.partition(":") for line in text.partition("\n\n")[0].splitlines()]
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    flags = fields.get("flags") or fields.get("Features") or ""
    return Cpu(machine, fields.get("model name") or fields.get("CPU part") or "unknown", tuple(sorted(flags.split())))


def has_nvidia_device() -> bool:
    """Tell whether the driver shows a GPU to this process; CUDA itself would print an error if there is none."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    return hidden not in ("", "-1", "NoDevFiles") and any(Path("/proc/driver/nvidia/gpus").glob("*"))


# The GPU exists, but its driver does not describe it. CUDA is then used, so that the user sees the driver's error.
UNKNOWN_GPU = Gpu("unknown", (0, 0), 0)


def find_gpu() -> Gpu | None:
    """Ask the driver for the first GPU that this process may use."""
    return ask_driver() if has_nvidia_device() else None


@lru_cache(maxsize=1)
def ask_driver() -> Gpu:
    """Source: CUDA driver API, device management (cuDeviceGetName, cuDeviceGetAttribute, cuDriverGetVersion)."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return UNKNOWN_GPU
    device, major, minor, version = (ctypes.c_int() for _ in range(4))
    name = ctypes.create_string_buffer(256)
    asked = (
        (driver.cuInit, 0),
        (driver.cuDeviceGet, ctypes.byref(device), 0),
        (driver.cuDeviceGetName, name, len(name), device),
        (driver.cuDeviceGetAttribute, ctypes.byref(major), CAPABILITY_MAJOR, device),
        (driver.cuDeviceGetAttribute, ctypes.byref(minor), CAPABILITY_MINOR, device),
        (driver.cuDriverGetVersion, ctypes.byref(version)),
    )
    if any(call(*arguments) != 0 for call, *arguments in asked):
        return UNKNOWN_GPU
    return Gpu(name.value.decode(errors="replace"), (major.value, minor.value), version.value)


def tensorrt_version() -> int | None:
    """Return the version of the TensorRT library; None if it cannot be loaded, so that its provider cannot start."""
    # ONNX Runtime 1.31's provider is linked against this name.
    library = "libnvinfer.so.10"
    wheel = importlib.util.find_spec("tensorrt_libs")
    folders = wheel.submodule_search_locations if wheel else None
    for place in (library, *(f"{folder}/{library}" for folder in folders or ())):
        try:
            # RTLD_GLOBAL lets the provider find the symbols that it is linked against.
            return int(ctypes.CDLL(place, ctypes.RTLD_GLOBAL).getInferLibVersion())
        except OSError:
            continue
    return None


def count_cpus() -> int:
    """Count the CPUs that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0))
