"""Batches that are on the device before they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import torch

from fusionray.types import Batch

BatchT = TypeVar("BatchT", bound=Batch)


class DevicePrefetcher(Generic[BatchT]):
    """Hand out batches of an iterator on a device; on a GPU the next one is copied while this one is computed."""

    def __init__(self, batches: Iterator[BatchT], device: torch.device) -> None:
        self.batches = batches
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.ahead: BatchT | None = None

    def __next__(self) -> BatchT:
        """Return the next batch.

        Raises: what the iterator raises.
        """
        if self.stream is None:
            return next(self.batches)
        batch = self.ahead if self.ahead is not None else self.copy()
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self.stream)

        def used_here(value: torch.Tensor) -> torch.Tensor:
            # Or its memory could be given to another tensor of the copying stream while it is still read.
            value.record_stream(current)
            return value

        batch = batch.map(used_here)
        self.ahead = self.copy()
        return batch

    def copy(self) -> BatchT:
        """Start copying a batch from page-locked memory, on a stream of its own."""
        batch = next(self.batches)
        with torch.cuda.stream(self.stream):
            return batch.to(self.device)
