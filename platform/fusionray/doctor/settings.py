"""Checks of variables that slow a run down, hide its faults, or leave a cluster open."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from fusionray.doctor.finding import Finding
from fusionray.doctor.host import Host

# Variables that somebody sets to find a fault, and forgets: their values, and what they cost.
LEFT_ON = {
    "CUDA_LAUNCH_BLOCKING": (("1",), "each kernel is waited for"),
    "TORCH_DISTRIBUTED_DEBUG": (("DETAIL",), "each exchange is checked on all ranks"),
    "NCCL_P2P_DISABLE": (("1",), "GPUs of a machine talk through its memory, not by NVLink"),
    "NCCL_IB_DISABLE": (("1",), "nodes talk by TCP, not by InfiniBand"),
    "NCCL_DEBUG": (("INFO", "TRACE"), "NCCL fills the logs"),
}


def check_bytecode(host: Host) -> Iterator[Finding]:
    """Look whether Python keeps its bytecode."""
    if host.environment.get("PYTHONDONTWRITEBYTECODE"):
        evidence = "PYTHONDONTWRITEBYTECODE is set: every process compiles its modules anew, some seconds each"
        remedy = "unset it where jobs and services start (images: compile at build, `python -m compileall`)"
        yield Finding("bytecode", "warning", evidence, remedy, "fix setting")


def check_debugging(host: Host) -> Iterator[Finding]:
    """Look for variables of debugging."""
    for name, (values, cost) in LEFT_ON.items():
        value = host.environment.get(name)
        if value in values:
            yield Finding("debugging", "warning", f"{name}={value}: {cost}", f"unset {name}", "fix setting")


def check_authentication(host: Host) -> Iterator[Finding]:
    """Look whether a cluster that is named asks for a token: whoever reaches it can run code on all nodes."""
    address, mode = host.environment.get("RAY_ADDRESS"), host.environment.get("RAY_AUTH_MODE")
    if address and mode != "token":
        remedy = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN on all nodes and clients"
        yield Finding(
            "authentication", "warning", f"RAY_ADDRESS={address}, RAY_AUTH_MODE={mode}", remedy, "fix setting"
        )


def check_master_address(host: Host) -> Iterator[Finding]:
    """Look for an address of rank 0 that somebody set by hand: Ray Train finds it out itself."""
    address = host.environment.get("MASTER_ADDR")
    if address and not host.is_here(address):
        evidence = f"MASTER_ADDR={address} is not this machine: ranks that read it wait for each other there"
        remedy = "unset it where Ray starts: Ray Train sets it in each worker, to the node of rank 0, which has a GPU"
        yield Finding("master address", "warning", evidence, remedy, "fix setting")


def check_flight_recorder(host: Host) -> Iterator[Finding]:
    """Look whether a hang of NCCL would leave a trace."""
    size = host.environment.get("TORCH_NCCL_TRACE_BUFFER_SIZE", "0")
    if host.num_gpus > 1 and not int(size if size.isdigit() else 0):
        remedy = "set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1"
        yield Finding("flight recorder", "note", "a collective that hangs would leave no trace", remedy, "fix setting")


def check_scripts(host: Host) -> Iterator[Finding]:
    """Read the training scripts that the user names: DataParallel, and gloo on GPUs, waste most of them."""
    for script in host.options.scripts:
        try:
            tree = ast.parse(Path(script).read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError) as error:
            yield Finding("script", "error", f"{script}: cannot be read ({error})", "check the path", "fix setting")
            continue
        faults = list(find_faults(tree, has_gpus=host.num_gpus > 0))
        for line, fault, remedy in faults:
            yield Finding("script", "warning", f"{script}:{line}: {fault}", remedy, "fix setting")
        if not faults:
            yield Finding("script", "ok", f"{script}: no DataParallel, and no gloo on GPUs")


def find_faults(tree: ast.AST, *, has_gpus: bool) -> Iterator[tuple[int, str, str]]:
    """Yield line, fault and remedy of calls that a training on several GPUs should not make."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "DataParallel":
            yield node.lineno, "DataParallel copies the model in each step", "use DistributedDataParallel"
        values = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "backend")]
        uses_gloo = any(isinstance(value, ast.Constant) and value.value == "gloo" for value in values)
        if name == "init_process_group" and uses_gloo and has_gpus:
            yield node.lineno, "gloo exchanges the gradients of GPUs through the CPU", 'use backend="nccl"'
