"""ONNX Runtime sessions on the execution providers that were asked for, or a clear refusal.

ONNX Runtime falls to the CPU without raising when a provider cannot start. Here that is an error, unless it is allowed.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from fusionray.errors import BundleInvalid, ProviderUnavailable
from fusionray.runtime.settings import RuntimeSettings

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
ERRORS_ONLY = 3
# ONNX Runtime's errors share no base class of their own.
LOAD_ERRORS = (
    ort_state.EPFail,
    ort_state.Fail,
    ort_state.InvalidArgument,
    ort_state.InvalidGraph,
    ort_state.InvalidProtobuf,
    ort_state.NotImplemented,
    ort_state.RuntimeException,
)


def build_session(path: str | Path, settings: RuntimeSettings) -> ort.InferenceSession:
    """Open a model on the providers of the settings, the first preferred, with every graph optimisation.

    `auto` takes the GPU if there is one, else the CPU. Threads are those of the settings, or the CPUs of this process.

    Raises: ProviderUnavailable if a provider is not there or does not become active, unless `allow_fallback`, which
        warns instead; BundleInvalid if the file is not a model that ONNX Runtime can read.
    """
    allow_fallback = settings.allow_fallback
    wanted = choose_providers() if settings.providers == "auto" else list(dict.fromkeys(settings.providers))
    known = ort.get_available_providers()
    refused = [name for name in wanted if name not in known]
    if refused:
        report_refusal(refused, f"this build of ONNX Runtime has {', '.join(known)}", allow_fallback)
    usable = [name for name in wanted if name in known] or [CPU]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # Ray gives its workers OMP_NUM_THREADS=1; ONNX Runtime would take that one thread however many CPUs there are.
    options.intra_op_num_threads = settings.threads or count_cpus()
    options.inter_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    # Idle threads that spin would take the CPU from the other session, the detector and the other replicas.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = open_model(Path(path), options, usable)
    inactive = [name for name in usable if name not in session.get_providers()]
    if inactive:
        report_refusal(inactive, "it could not start here (driver or libraries missing, or no device)", allow_fallback)
    return session


def open_model(path: Path, options: ort.SessionOptions, providers: list[str]) -> ort.InferenceSession:
    if not path.is_file():
        raise BundleInvalid(f"{path}: there is no such model; copy or export the bundle again")
    try:
        return ort.InferenceSession(str(path), options, providers=providers)
    except LOAD_ERRORS as error:
        raise BundleInvalid(f"{path}: ONNX Runtime cannot load it ({first_line(error)}); export it again") from None


def choose_providers() -> list[str]:
    """Choose the providers that fit this machine: CUDA where a GPU and its driver are, else the CPU."""
    return [CUDA, CPU] if CUDA in ort.get_available_providers() and has_nvidia_device() else [CPU]


def has_nvidia_device() -> bool:
    """Tell whether the driver shows a GPU to this process; asking CUDA itself would print an error where it is not."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    return hidden not in ("", "-1", "NoDevFiles") and any(Path("/proc/driver/nvidia/gpus").glob("*"))


def count_cpus() -> int:
    """Count the CPUs that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0))


def report_refusal(names: list[str], reason: str, allow_fallback: bool) -> None:
    what = f"{', '.join(names)}: {reason}"
    if not allow_fallback:
        raise ProviderUnavailable(f"{what}; ask for 'auto' or {CPU}, or set allow_fallback")
    warnings.warn(f"{what}; continuing without, as allow_fallback says", RuntimeWarning, stacklevel=3)


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def list_active(session: ort.InferenceSession) -> tuple[str, tuple[str, ...], int, str]:
    """List what a session runs on: first provider, all of them, CPU threads, library."""
    active = tuple(session.get_providers())
    threads = session.get_session_options().intra_op_num_threads
    return active[0], active, threads, f"onnxruntime {ort.__version__}"
