"""Staging: which parts of the state this rank saves, and the copy of them that is written while training goes on."""

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
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.tensor import DTensor

from fusionray.checkpoint.index import DTYPES
from fusionray.storage import filesystem as storage

# Numbers of any type may begin in memory at a multiple of this.
ALIGNMENT = 64
# numpy knows neither bfloat16 nor float8: bytes of equal width stand for them.
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Piece:
    """What this rank saves of one tensor: a box of it, and the staged copy (in the memory layout of its source)."""

    name: str
    shape: list[int]
    offsets: list[int]
    copy: Tensor


class Staging:
    """A copy of this rank's share of the state, made quickly and again and again in the same memory.

    torch.distributed.checkpoint plans the shares: of tensors that several ranks hold each saves some.
    """

    @torch.no_grad()
    def __init__(self, state: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> None:
        check_numbers(state)
        self.signature = sign(state)
        items = plan_share(state, group)
        shards = [local_part(state[item.index.fqn]) for item in items]
        starts = np.cumsum([0, *(padded(local.nbytes) for local in shards)])
        self.gpu = next((local.device for local in shards if local.is_cuda), None)
        # Zeros, not empty: the first copy into new memory takes many times as long.
        buffer = torch.zeros(int(starts[-1]), dtype=torch.uint8, pin_memory=self.gpu is not None)
        self.pieces = [
            Piece(
                item.index.fqn,
                list(item.tensor_data.size),
                list(item.tensor_data.chunk.offsets),
                view_like(buffer[start:], local),
            )
            for item, local, start in zip(items, shards, starts.tolist(), strict=False)
        ]
        self.copied: torch.cuda.Event | None = None

    def fits(self, state: Mapping[str, Tensor]) -> bool:
        """Tell whether a state is laid out as the one that was planned for."""
        return sign(state) == self.signature

    @torch.no_grad()
    def take(self, state: Mapping[str, Tensor]) -> None:
        """Copy the state's present values. From a GPU the copies are only queued: before any later change of it."""
        sources = [local_part(state[piece.name]) for piece in self.pieces]
        if sources:
            torch._foreach_copy_([piece.copy for piece in self.pieces], sources, non_blocking=True)
        if self.gpu is not None:
            self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.copied.record(torch.cuda.current_stream(self.gpu))

    def write(self, location: str) -> tuple[int, dict[str, Any]]:
        """Write the copy to a data file.

        Returns: its length in bytes, and its entries of the table (see table.TensorTable).
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


def plan_share(state: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> list[Any]:
    """Plan together what each rank saves; return this rank's torch.distributed.checkpoint write items."""
    rank = 0 if group is None else dist.get_rank(group)
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(state), is_coordinator=rank == 0)
    plans = [planner.create_local_plan()]
    if group is not None:
        plans *= dist.get_world_size(group)
        dist.all_gather_object(plans, plans[rank], group=group)
    # Every rank makes the whole plan, alike: an error in it is then raised on all of them.
    shares, _ = planner.create_global_plan(plans)
    return list(shares[rank].items)


def check_numbers(state: Mapping[str, Tensor]) -> None:
    """Check that a state is made of tensors that the format can hold.

    Raises: TypeError naming the first value that is not.
    """
    for name, value in state.items():
        if not isinstance(value, Tensor) or str(value.dtype).removeprefix("torch.") not in DTYPES:
            raise TypeError(f"{name}: a checkpoint holds tensors of {', '.join(DTYPES)} only, not {value!r:.80}")


@torch.no_grad()
def sign(state: Mapping[str, Tensor]) -> list[tuple[Any, ...]]:
    """Sum up the layout of a state."""
    parts = ((name, value.shape, local_part(value)) for name, value in state.items())
    return [(name, shape, local.shape, local.stride(), local.dtype, local.device) for name, shape, local in parts]


def local_part(value: Tensor) -> Tensor:
    """Give what this rank holds of a tensor; under `no_grad`, or autograd would follow it."""
    return value.to_local() if isinstance(value, DTensor) else value


def view_like(memory: Tensor, source: Tensor) -> Tensor:
    """View bytes as a tensor of a source's shape, type and order in memory: copying in order is twice as fast."""
    strides = torch.empty_like(source, device="meta").stride()
    return memory[: source.nbytes].view(source.dtype).as_strided(source.shape, strides)


def plain_bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """Give the values of a CPU tensor in C order as bytes; numpy copies where it must, outside Python's lock."""
    words = tensor.view(WORDS[tensor.itemsize]).numpy()
    return np.ascontiguousarray(words).reshape(-1).view(np.uint8)


def padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
