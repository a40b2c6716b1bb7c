"""The memory limit of a device, the peak memory of a step, and the largest batch that fits."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path

import torch

from fusionray.hardware.memory import free_bytes, resident_bytes, status_bytes

# Messages of the CPU and oneDNN allocators, and of cuBLAS, cuDNN and their like (CUBLAS_STATUS_ALLOC_FAILED), which
# allocate beside torch; torch's own allocator for CUDA has an exception type.
MESSAGES = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
    "could not create a memory",
    "_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is an out-of-memory error."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in MESSAGES)


def memory_limit(device: torch.device, share: float, gib: float | None, num_local: int) -> int:
    """Return the bytes that this process may use: `share` of what it holds and what is free, or of `gib` on a CPU.

    On a GPU, what other processes hold does not count, nor do this one's context and communicators, which torch's
    allocator cannot use: communicate once before this is called.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int((torch.cuda.memory_reserved(device) + free) * share)
    if gib is not None:
        return int(gib * 2**30 * share)
    return int((resident_bytes() + free_bytes() / num_local) * share)


def peak_bytes(device: torch.device, run: Callable[[], None]) -> int:
    """Run something and return the most memory that was in use while it ran."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        # Reserved, not allocated: no other process can use what the caching allocator holds.
        return torch.cuda.max_memory_reserved(device)
    with contextlib.suppress(OSError):  # a sandbox may forbid it: then the peak includes earlier work, which is safe
        Path("/proc/self/clear_refs").write_text("5")
    run()
    return status_bytes("VmHWM")


def largest_batch(measure: Callable[[int], float], *, most: int, fewest: int = 1) -> int:
    """Find the largest batch from `fewest` up to `most` images whose step fits; 0 if not even the fewest do.

    `measure` runs a step of that many images and returns the share of the limit that it needed, above 1 if it did not
    fit. Memory grows linearly with the batch: the size is extrapolated from small steps, then tried.
    """
    sizes = [size for size in (fewest, 2 * fewest, 4 * fewest) if size <= most]
    needs: dict[int, float] = {}
    for size in sizes:
        need = measure(size)
        if need > 1:
            break
        needs[size] = need
    if not needs:
        return 0
    low, high = min(needs), max(needs)
    if high < sizes[-1] or high == most:
        return high
    slope = max(1e-9, (needs[high] - needs[low]) / max(1, high - low))
    size = min(most, high + math.floor((1 - needs[high]) / slope + 1e-6))
    while size > high:
        need = measure(size)
        if need <= 1:
            return size
        # Allocators round up and kernels need work space: reduce until it fits.
        size = max(high, size // 2 if math.isinf(need) else int(size * 0.9))
    return high


def even_chunks(images: int, largest: int) -> int:
    """Return the batch size that cuts `images` into the fewest, most equal parts of at most `largest`."""
    return math.ceil(images / math.ceil(images / largest))
