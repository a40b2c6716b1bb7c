"""Staging: the parts of the state that this rank saves, and their copy, which is written while training continues."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from fusionray.checkpoint.boxes import Held, describe_held, divide
from fusionray.checkpoint.index import DTYPES
from fusionray.checkpoint.sharding import local_part
from fusionray.storage import filesystem as storage

# Numbers of any type may begin in memory at a multiple of this.
ALIGNMENT = 64
# numpy supports neither bfloat16 nor float8, so integers of equal width represent them.
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Piece:
    """The box of one tensor that this rank saves, and its staged copy (in the memory layout of its source)."""

    name: str
    shape: list[int]
    offsets: list[int]
    copy: Tensor


class Staging:
    """A copy of this rank's part of the state, in memory that every save reuses.

    Ranks divide the tensors that several of them hold.
    """

    @torch.no_grad()
    def __init__(self, state: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> None:
        check_numbers(state)
        self.signature = sign(state)
        items = plan_parts(state, group)
        shards = [local_part(state[item.name]) for item in items]
        starts = np.cumsum([0, *(padded(local.nbytes) for local in shards)])
        self.gpu = next((local.device for local in shards if local.is_cuda), None)
        # Zeros instead of empty: the first copy into untouched memory takes many times longer.
        buffer = torch.zeros(int(starts[-1]), dtype=torch.uint8, pin_memory=self.gpu is not None)
        self.pieces = [
            Piece(item.name, list(item.shape), list(item.box.offsets), view_like(buffer[start:], local))
            for item, local, start in zip(items, shards, starts.tolist(), strict=False)
        ]
        self.copied: torch.cuda.Event | None = None

    def fits(self, state: Mapping[str, Tensor]) -> bool:
        """Return whether a state has the layout that this plan was made for."""
        return sign(state) == self.signature

    @torch.no_grad()
    def take(self, state: Mapping[str, Tensor]) -> None:
        """Copy the state's present values. From a GPU, the copies are queued before any later change of the state."""
        sources = [local_part(state[piece.name]) for piece in self.pieces]
        if sources:
            torch._foreach_copy_([piece.copy for piece in self.pieces], sources, non_blocking=True)
        if self.gpu is not None:
            self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.copied.record(torch.cuda.current_stream(self.gpu))

    def write(self, location: str) -> tuple[int, dict[str, Any]]:
        """Write the copy to a data file.

        Returns: its length in bytes, and its entries of the table (see index.py).
        Raises: OSError.
        """
        if self.copied is not None:
            self.copied.synchronize()
        file_name = location.rsplit("/", 1)[-1]
        entries: dict[str, Any] = {}
        start = 0
        with storage.open_output(location) as file:
            for piece in self.pieces:
                data = plain_bytes(piece.copy)
                file.write(data)
                part = {
                    "offsets": piece.offsets,
                    "sizes": list(piece.copy.shape),
                    "file": file_name,
                    "start": start,
                    "sha256": hashlib.sha256(data.data).hexdigest(),
                }
                dtype = str(piece.copy.dtype).removeprefix("torch.")
                entries[piece.name] = {"dtype": dtype, "shape": piece.shape, "parts": [part]}
                start += data.size
        return start, entries


def plan_parts(state: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> list[Held]:
    """Plan with all ranks what each one saves, and return this rank's share.

    Raises: TypeError for a DTensor of another kind, ValueError on all ranks alike if their parts make no whole tensor.
    """
    held = [describe_held(state)]
    if group is None:
        return divide(held)[0]
    held *= dist.get_world_size(group)
    dist.all_gather_object(held, held[0], group=group)
    return divide(held)[dist.get_rank(group)]


def check_numbers(state: Mapping[str, Tensor]) -> None:
    """Check that all values of a state are tensors that the format supports.

    Raises: TypeError naming the first value that is not.
    """
    for name, value in state.items():
        if not isinstance(value, Tensor) or str(value.dtype).removeprefix("torch.") not in DTYPES:
            raise TypeError(f"{name}: a checkpoint holds tensors of {', '.join(DTYPES)} only, not {value!r:.80}")


@torch.no_grad()
def sign(state: Mapping[str, Tensor]) -> list[tuple[Any, ...]]:
    """Return the layout of a state, for comparison."""
    parts = ((name, value.shape, local_part(value)) for name, value in state.items())
    return [(name, shape, local.shape, local.stride(), local.dtype, local.device) for name, shape, local in parts]


def view_like(memory: Tensor, source: Tensor) -> Tensor:
    """View bytes as a tensor with the shape, dtype and strides of `source`: a copy in order is twice as fast."""
    strides = torch.empty_like(source, device="meta").stride()
    return memory[: source.nbytes].view(source.dtype).as_strided(source.shape, strides)


def plain_bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """Give the values of a CPU tensor in C order as bytes; numpy copies where it must, without Python's lock."""
    words = tensor.view(WORDS[tensor.itemsize]).numpy()
    return np.ascontiguousarray(words).reshape(-1).view(np.uint8)


def padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
