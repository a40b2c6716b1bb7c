"""Work that shows what a machine and its links can do: products of matrices, copies to a GPU, an all-reduce. No Ray."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from fusionray.hardware.network import find_interface

# Side of the matrices, and seconds that are measured: a CPU computes a product in some 50 ms, a GPU in one.
CPU_SIDE, GPU_SIDE = 1024, 8192
SECONDS = 1.0
COPY_BYTES = 256 * 2**20
# Of a message between two nodes: long enough for a bandwidth, and a second on a link of 250 Mbit/s.
MESSAGE_BYTES = 32 * 2**20
ROUNDS = 3
# Among the GPUs of a machine: only long messages fill NVLink.
GPU_MESSAGE_BYTES, GPU_ROUNDS = 2**30, 20
# Products that wait at a GPU, some 150 ms of work: it idles for a moment after each such round.
QUEUED_PRODUCTS = 100
LOOPBACK = "127.0.0.1"
GROUP_TIMEOUT = timedelta(seconds=120)


def measure_products(device: torch.device) -> float:
    """Multiply square matrices for a second; return 10^9 floating-point operations a second, the median of them.

    float32 on a CPU, bfloat16 on a GPU.
    """
    side, dtype = (GPU_SIDE, torch.bfloat16) if device.type == "cuda" else (CPU_SIDE, torch.float32)
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return 2e-9 * side**3 / time_each(lambda: left @ right, device)


def measure_copies(device: torch.device) -> float:
    """Copy page-locked memory to a GPU for a second; return GB/s."""
    host = torch.empty(COPY_BYTES, dtype=torch.uint8).pin_memory()
    there = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    return 1e-9 * COPY_BYTES / time_each(lambda: there.copy_(host, non_blocking=True), device)


def time_each(work: Callable[[], object], device: torch.device) -> float:
    """Return the median of the seconds that a piece of work takes, after one that is not counted."""
    taken: list[float] = []
    until = time.perf_counter() + SECONDS
    while len(taken) < 2 or time.perf_counter() < until:
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])


def load_gpus(seconds: float) -> None:
    """Multiply matrices on all GPUs at once."""
    devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    factors = [torch.randn(GPU_SIDE, GPU_SIDE, device=device, dtype=torch.bfloat16) for device in devices]
    products = [torch.empty_like(factor) for factor in factors]
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        # All have work before the first one is waited for.
        for factor, product in zip(factors, products, strict=True):
            for _ in range(QUEUED_PRODUCTS):
                torch.mm(factor, factor, out=product)
        for device in devices:
            torch.cuda.synchronize(device)


def measure_exchange(rank: int, address: str, port: int, own_address: str) -> float:
    """Exchange messages with one other process, as gradients are averaged; return MB/s of payload a direction.

    Both processes call it, with the address and a free port of rank 0. NCCL on machines with GPUs, else gloo, by the
    interface that has `own_address`, as in a training.

    Raises: RuntimeError if they do not meet.
    """
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    seconds = time_all_reduces(
        rank, 2, f"tcp://{address}:{port}", own_address, device, num_bytes=MESSAGE_BYTES, rounds=ROUNDS
    )
    # Of two ranks each sends and receives the message once in all.
    return 1e-6 * MESSAGE_BYTES / seconds


def measure_all_reduce(rank: int, num_ranks: int, port: int) -> tuple[int, float]:
    """Average messages among processes of this machine, one a GPU; return the bytes of one and its seconds.

    All of them call it, with a free port.

    Raises: RuntimeError if they do not meet.
    """
    device, num_bytes, rounds = torch.device("cpu"), MESSAGE_BYTES, ROUNDS
    if torch.cuda.is_available():
        device, num_bytes, rounds = torch.device("cuda", rank), GPU_MESSAGE_BYTES, GPU_ROUNDS
        torch.cuda.set_device(device)
    url = f"tcp://{LOOPBACK}:{port}"
    return num_bytes, time_all_reduces(rank, num_ranks, url, LOOPBACK, device, num_bytes=num_bytes, rounds=rounds)


def time_all_reduces(
    rank: int, num_ranks: int, url: str, own_address: str, device: torch.device, *, num_bytes: int, rounds: int
) -> float:
    """Join a group of processes, and return the median of the seconds of an all-reduce; NCCL on GPUs, else gloo.

    Raises: RuntimeError if they do not meet, or the sum is wrong.
    """
    interface = find_interface(own_address)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=url, rank=rank, world_size=num_ranks, timeout=GROUP_TIMEOUT)
    try:
        tried = torch.full((1024,), float(rank + 1), device=device)
        dist.all_reduce(tried)
        # 1 + 2 + ... + n
        if not torch.all(tried == num_ranks * (num_ranks + 1) / 2):
            raise RuntimeError(f"the sum of {num_ranks} ranks is {tried[0].item()}")
        message = torch.zeros(num_bytes // 4, device=device)
        taken: list[float] = []
        for _ in range(rounds):
            started = time.perf_counter()
            dist.all_reduce(message)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken.append(time.perf_counter() - started)
    finally:
        dist.destroy_process_group()
    return statistics.median(taken)
