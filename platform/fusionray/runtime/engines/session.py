"""Open ONNX Runtime sessions on the requested execution providers.

If a provider cannot start, ONNX Runtime silently uses the CPU. Here that is an error, unless `allow_fallback` is set.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping, Sequence

import onnxruntime as ort

from fusionray.errors import BundleInvalid, ProviderUnavailable, first_line
from fusionray.hardware.device import count_cpus, find_gpu, has_nvidia_device, tensorrt_version
from fusionray.onnx_errors import ONNX_ERRORS
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.providers import CPU, GPU_PROVIDERS, order_providers

ERRORS_ONLY = 3


def choose_providers() -> tuple[str, ...]:
    """Return the providers for this machine, the preferred first."""
    gpu = find_gpu()
    has_tensorrt = gpu is not None and tensorrt_version() is not None
    return order_providers(gpu, ort.get_available_providers(), has_tensorrt=has_tensorrt)


def select_providers(settings: RuntimeConfig) -> list[str]:
    """Return those providers of the settings that this build of ONNX Runtime has, the preferred first.

    Raises: ProviderUnavailable if it lacks one, unless `allow_fallback`, which warns instead.
    """
    wanted = choose_providers() if settings.providers == "auto" else tuple(dict.fromkeys(settings.providers))
    known = ort.get_available_providers()
    refused = [name for name in wanted if name not in known]
    if refused:
        refuse_or_warn(refused, f"this build of ONNX Runtime has {', '.join(known)}", settings.allow_fallback)
    return [name for name in wanted if name in known] or [CPU]


def build_session_options(settings: RuntimeConfig, providers: Sequence[str]) -> ort.SessionOptions:
    """Build session options: all graph optimisations, an explicit number of threads, no spinning."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # Ray sets OMP_NUM_THREADS=1 in its workers, and ONNX Runtime would use one thread on any number of CPUs.
    # With a GPU, one thread is enough to launch kernels.
    options.intra_op_num_threads = settings.threads or (1 if providers[0] in GPU_PROVIDERS else count_cpus())
    options.inter_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    options.enable_mem_pattern = settings.memory_plans
    # Spinning idle threads would take CPU time from the other session, the detector and the other replicas.
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
    """Open a model file on providers with their options, the preferred first; messages call the model `name`.

    Raises: ProviderUnavailable if a provider does not become active, unless `allow_fallback`, which warns instead;
        BundleInvalid if the file is not a model that ONNX Runtime can read.
    """
    if has_nvidia_device() and any(provider in GPU_PROVIDERS for provider in providers):
        # It prints a line for each CUDA library that it does not find; the check below reports a provider's failure.
        with contextlib.redirect_stdout(io.StringIO()):
            ort.preload_dlls()
    try:
        # If a provider fails, ONNX Runtime prints to the terminal and falls back to the CPU.
        session = ort.InferenceSession(model, options, providers=[(key, dict(row)) for key, row in providers.items()])
    except ONNX_ERRORS as error:
        raise BundleInvalid(f"{name}: ONNX Runtime cannot load it ({first_line(error)}); export it again") from None
    inactive = [provider for provider in providers if provider not in session.get_providers()]
    if inactive:
        refuse_or_warn(inactive, "it could not start here (driver or libraries missing, or no device)", allow_fallback)
    return session


def refuse_or_warn(names: Sequence[str], reason: str, allow_fallback: bool) -> None:
    """Raise for unavailable providers, or warn if `allow_fallback`.

    Raises: ProviderUnavailable.
    """
    problem = f"{', '.join(names)}: {reason}"
    if not allow_fallback:
        raise ProviderUnavailable(f"{problem}; set providers to 'auto' or {CPU}, or set allow_fallback")
    warnings.warn(f"{problem}; continuing without, because allow_fallback is set", RuntimeWarning, stacklevel=4)
