"""ONNX Runtime sessions on the execution providers that were asked for, or a clear refusal.

ONNX Runtime falls to the CPU without raising when a provider cannot start. Here that is an error, unless it is allowed.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping, Sequence

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from fusionray.errors import BundleInvalid, ProviderUnavailable
from fusionray.hardware.device import count_cpus, find_gpu, has_nvidia_device, tensorrt_version
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.providers import CPU, CUDA, ON_A_GPU, order_providers

__all__ = ["CPU", "CUDA", "choose_providers", "count_cpus", "has_nvidia_device", "open_session", "select_providers"]

ERRORS_ONLY = 3
# ONNX Runtime's errors share no base class of their own.
LOAD_ERRORS = (
    ort_state.EPFail,
    ort_state.Fail,
    ort_state.InvalidArgument,
    ort_state.InvalidGraph,
    ort_state.InvalidProtobuf,
    ort_state.NoSuchFile,
    ort_state.NotImplemented,
    ort_state.RuntimeException,
)


def choose_providers() -> tuple[str, ...]:
    """Choose the providers that fit this machine, the first preferred."""
    gpu = find_gpu()
    has_tensorrt = gpu is not None and tensorrt_version() is not None
    return order_providers(gpu, ort.get_available_providers(), has_tensorrt=has_tensorrt)


def select_providers(settings: RuntimeConfig) -> list[str]:
    """Select of the providers of the settings those that this build of ONNX Runtime has.

    Raises: ProviderUnavailable if it lacks one, unless `allow_fallback`, which warns instead.
    """
    wanted = choose_providers() if settings.providers == "auto" else tuple(dict.fromkeys(settings.providers))
    known = ort.get_available_providers()
    refused = [name for name in wanted if name not in known]
    if refused:
        report_refusal(refused, f"this build of ONNX Runtime has {', '.join(known)}", settings.allow_fallback)
    return [name for name in wanted if name in known] or [CPU]


def tune(settings: RuntimeConfig, providers: Sequence[str]) -> ort.SessionOptions:
    """Set what a session computes with: every graph optimisation, and a number of threads set on purpose."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # Ray gives its workers OMP_NUM_THREADS=1; ONNX Runtime would take that one thread however many CPUs there are.
    # Beside a GPU one thread has nothing to do but to hand kernels over.
    options.intra_op_num_threads = settings.threads or (1 if providers[0] in ON_A_GPU else count_cpus())
    options.inter_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    # Idle threads that spin would take the CPU from the other session, the detector and the other replicas.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def open_session(
    model: str,
    options: ort.SessionOptions,
    providers: Mapping[str, Mapping[str, str]],
    *,
    name: str,
    allow_fallback: bool = False,
) -> ort.InferenceSession:
    """Open a model file on providers with their options, the first preferred; `name` is what messages call it.

    Raises: ProviderUnavailable if a provider does not become active, unless `allow_fallback`, which warns instead;
        BundleInvalid if the file is not a model that ONNX Runtime can read.
    """
    if has_nvidia_device() and any(provider in ON_A_GPU for provider in providers):
        # It prints about each library of CUDA that it does not find; whether the provider starts is checked below.
        with contextlib.redirect_stdout(io.StringIO()):
            ort.preload_dlls()
    try:
        # A failing provider makes ONNX Runtime print to the terminal and try again on the CPU.
        session = ort.InferenceSession(model, options, providers=[(key, dict(row)) for key, row in providers.items()])
    except LOAD_ERRORS as error:
        raise BundleInvalid(f"{name}: ONNX Runtime cannot load it ({first_line(error)}); export it again") from None
    inactive = [provider for provider in providers if provider not in session.get_providers()]
    if inactive:
        report_refusal(inactive, "it could not start here (driver or libraries missing, or no device)", allow_fallback)
    return session


def report_refusal(names: Sequence[str], reason: str, allow_fallback: bool) -> None:
    """Refuse what cannot be had, or warn where going on without it is allowed.

    Raises: ProviderUnavailable.
    """
    what = f"{', '.join(names)}: {reason}"
    if not allow_fallback:
        raise ProviderUnavailable(f"{what}; ask for 'auto' or {CPU}, or set allow_fallback")
    warnings.warn(f"{what}; continuing without, as allow_fallback says", RuntimeWarning, stacklevel=4)


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
