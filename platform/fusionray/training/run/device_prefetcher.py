"""Prefetching of batches to the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import torch

from fusionray.types import Batch

BatchT = TypeVar("BatchT", bound=Batch)


class DevicePrefetcher(Generic[BatchT]):
    """Copy an iterator's batches to a device; on a GPU, the next batch is copied during the present step."""

    def __init__(self, batches: Iterator[BatchT], device: torch.device) -> None:
        self.batches = batches
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.next_batch: BatchT | None = None

    def __next__(self) -> BatchT:
        """Return the next batch.

        Raises: what the iterator raises.
        """
        if self.stream is None:
            return next(self.batches)
        batch = self.next_batch if self.next_batch is not None else self.copy()
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self.stream)

        def used_here(value: torch.Tensor) -> torch.Tensor:
            # Otherwise the allocator could reuse the memory on the copying stream while it is still read here.
            value.record_stream(current)
            return value

        batch = batch.map(used_here)
        self.next_batch = self.copy()
        return batch

    def copy(self) -> BatchT:
        """Start to copy the next batch from page-locked memory on the copying stream."""
        batch = next(self.batches)
        with torch.cuda.stream(self.stream):
            return batch.to(self.device)
