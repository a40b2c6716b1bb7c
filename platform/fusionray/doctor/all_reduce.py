"""An all-reduce among all GPUs of a machine, as each step of a training makes one; on CPUs between two processes.

The NCCL half is not measured yet, for want of a machine with several GPUs; gloo between two processes is.
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fusionray.doctor.finding import Finding

# GB/s of bus bandwidth that eight GPUs reach over NVSwitch, as cloud providers' health checks have it.
WANTED_BUS = {"A100": 228.0, "H100": 460.0, "H200": 480.0}
WANTED_RANKS = 8
LEAST_BUS = 0.8
# Cards for PCIe slots have no NVSwitch: NVIDIA H100 PCIe, NVIDIA H200 NVL, NVIDIA A100-PCIE-40GB.
SLOT_CARD = re.compile(r"\b(PCIe|NVL)\b", re.IGNORECASE)
CPU_RANKS = 2
ANSWER_SECONDS = 240.0


@dataclass(frozen=True)
class BusBandwidth:
    """What was measured: GB/s of `num_ranks` processes on devices of one `model`; 0: they did not come to an end."""

    num_ranks: int
    model: str
    gbytes_per_second: float


def compute_bus_gbytes(num_ranks: int, num_bytes: int, seconds: float) -> float:
    """Compute the bus bandwidth: what each link carries, which does not depend on the number of ranks.

    Source: nccl-tests, doc/PERFORMANCE.md: 2 (n - 1) / n * bytes / time.
    """
    return 1e-9 * 2 * (num_ranks - 1) / num_ranks * num_bytes / seconds


def examine_bus() -> list[Finding]:
    """Measure and judge this machine."""
    measured = measure_machine_bus()
    return [] if measured is None else list(judge_bus(measured))


def measure_machine_bus() -> BusBandwidth | None:
    """Measure among all GPUs of this machine, or two processes of its CPU; None: it has one GPU, and no link."""
    import torch

    from fusionray.doctor.stress import measure_all_reduce
    from fusionray.ray_cluster.connection import find_free_port

    has_gpus = torch.cuda.is_available()
    num_ranks = torch.cuda.device_count() if has_gpus else CPU_RANKS
    model = torch.cuda.get_device_name(0) if has_gpus else "CPU"
    if num_ranks < 2:
        return None
    port = find_free_port()
    # Spawned: a process that was forked cannot use CUDA. Leaving the block ends those that hang.
    with multiprocessing.get_context("spawn").Pool(num_ranks) as pool:
        answers = [pool.apply_async(measure_all_reduce, (rank, num_ranks, port)) for rank in range(num_ranks)]
        try:
            num_bytes, seconds = max(answer.get(ANSWER_SECONDS) for answer in answers)
        except (RuntimeError, multiprocessing.TimeoutError):
            return BusBandwidth(num_ranks, model, 0.0)
    return BusBandwidth(num_ranks, model, compute_bus_gbytes(num_ranks, num_bytes, seconds))


def judge_bus(measured: BusBandwidth) -> Iterator[Finding]:
    """Judge the bandwidth by what the model reaches; where no figure is known, tell what was measured."""
    who = f"{measured.num_ranks} processes ({measured.model})"
    if not measured.gbytes_per_second:
        remedy = "look at NCCL_DEBUG=INFO, the fabric manager and /dev/shm"
        yield Finding("all-reduce", "error", f"{who}: does not come to an end", remedy, "isolate node")
        return
    evidence = f"{who}: {measured.gbytes_per_second:.1f} GB/s of bus bandwidth"
    model = re.search(rf"\b({'|'.join(WANTED_BUS)})\b", measured.model)
    if model is None or measured.num_ranks != WANTED_RANKS or SLOT_CARD.search(measured.model):
        yield Finding("all-reduce", "note", f"{evidence}; no reference for these devices")
    elif measured.gbytes_per_second < LEAST_BUS * WANTED_BUS[model[1]]:
        remedy = "look at NVLink (`nvidia-smi topo -m`), NCCL_P2P_DISABLE, NCCL_NVLS_ENABLE and the fabric manager"
        evidence += f", {WANTED_BUS[model[1]]:.0f} expected"
        yield Finding("all-reduce", "error", evidence, remedy, "isolate node")
    else:
        yield Finding("all-reduce", "ok", evidence)
