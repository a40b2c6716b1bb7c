"""Checks of the installed packages: against what this package needs, against each other, and what really loads."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata

from fusionray.doctor.finding import Finding
from fusionray.doctor.host import Host
from fusionray.hardware.device import tensorrt_version
from fusionray.runtime.engines.providers import CUDA, TENSORRT

# What nodes of a cluster must have in common.
COMPARED = ("ray", "torch", "numpy", "pyarrow", "onnxruntime-gpu", "onnxruntime", "mlflow", "fusionray")


def list_versions() -> dict[str, str]:
    """List the versions of Python and of the packages that nodes must have in common, those of CUDA among them."""
    versions = {"python": platform.python_version()}
    for name in COMPARED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    # CUDA, cuDNN and NCCL come as packages with the CUDA build of torch.
    nvidia = {
        package.name: package.version for package in metadata.distributions() if package.name.startswith("nvidia-")
    }
    return versions | dict(sorted(nvidia.items()))


def check_requirements(_: Host) -> Iterator[Finding]:
    """Look whether the installed packages are those that this one needs."""
    from packaging.requirements import Requirement

    try:
        needs = [Requirement(text) for text in metadata.requires("fusionray") or []]
    except metadata.PackageNotFoundError:
        yield Finding("packages", "note", "fusionray runs from a checkout that is not installed", "", "none")
        return
    faults = []
    for need in needs:
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            continue
        try:
            found = metadata.version(need.name)
        except metadata.PackageNotFoundError:
            faults.append(f"{need.name} is missing")
            continue
        if not need.specifier.contains(found, prereleases=True):
            faults.append(f"{need.name} {found} is not {need.specifier}")
    if faults:
        remedy = "install from the lock: `pip install -r requirements.lock`"
        yield Finding("packages", "error", "; ".join(faults), remedy, "fix setting")
    else:
        yield Finding("packages", "ok", ", ".join(f"{name} {found}" for name, found in list_versions().items()))


def check_slow_imports(_: Host) -> Iterator[Finding]:
    """Look for packages that make every process of Ray start later."""
    try:
        found = metadata.version("rfc3987-syntax")
    except metadata.PackageNotFoundError:
        return
    evidence = (
        f"rfc3987-syntax {found} is installed: jsonschema imports it, which builds a grammar, so `import ray` takes a "
        "second longer in every process"
    )
    remedy = "keep the tools that need it (SBOM, notebooks) in an environment of their own"
    yield Finding("imports", "note", evidence, remedy, "fix setting")


def check_onnxruntime(_: Host) -> Iterator[Finding]:
    """Look for two packages that write into one folder: the later one wins, in part."""
    both = [name for name in ("onnxruntime", "onnxruntime-gpu") if name in list_versions()]
    if len(both) == 2:
        remedy = "uninstall both, then install onnxruntime-gpu alone, which has the CPU as well"
        yield Finding("onnxruntime", "error", "onnxruntime and onnxruntime-gpu are installed", remedy, "fix setting")


def check_torch(host: Host) -> Iterator[Finding]:
    """Look whether torch sees the GPUs of the machine."""
    import torch

    built = torch.version.cuda or torch.version.hip
    evidence = f"torch {torch.__version__} is built for {f'CUDA {built}' if built else 'CPUs'}"
    if host.num_gpus and not built:
        remedy = "install torch for CUDA (docs/installation.md)"
        yield Finding("torch", "error", f"{evidence}, and there are {host.num_gpus} GPUs", remedy, "fix setting")
    elif host.num_gpus and not torch.cuda.is_available():
        remedy = "install a driver that is new enough, or a torch for an older CUDA"
        yield Finding("torch", "error", f"{evidence}, and finds no GPU of {host.num_gpus}", remedy, "fix setting")
    else:
        yield Finding("torch", "ok", evidence)


def check_providers(host: Host) -> Iterator[Finding]:
    """Look which execution providers of ONNX Runtime really load; one that does not falls back to the CPU silently."""
    import onnxruntime

    if not host.num_gpus:
        yield Finding("ONNX Runtime", "ok", f"onnxruntime {onnxruntime.__version__} on the CPU")
        return
    for provider in (CUDA, TENSORRT):
        if provider == TENSORRT and tensorrt_version() is None:
            remedy = "install it if models should run faster (docs/installation.md)"
            yield Finding("ONNX Runtime", "note", "TensorRT is not there; models run on CUDA alone", remedy, "none")
            continue
        if provider not in onnxruntime.get_available_providers():
            remedy = "install onnxruntime-gpu instead of onnxruntime"
            yield Finding("ONNX Runtime", "error", f"{provider} is not built in", remedy, "fix setting")
            continue
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        active = onnxruntime.InferenceSession(build_model(), options, providers=[provider]).get_providers()
        if provider in active:
            yield Finding("ONNX Runtime", "ok", f"{provider} loads")
        else:
            remedy = "install the CUDA and cuDNN (or TensorRT) that this onnxruntime-gpu is built for"
            yield Finding("ONNX Runtime", "error", f"{provider} does not load", remedy, "fix setting")


def build_model() -> bytes:
    """Build a model of one addition."""
    from onnx import TensorProto, helper

    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("a", "b")]
    graph = helper.make_graph([helper.make_node("Add", ["a", "a"], ["b"])], "one", ports[:1], ports[1:])
    data: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    return data
