"""Sharded tensors (DTensor), recognised without importing `torch.distributed.tensor`: 500 modules, a second of a core.

Only FSDP makes sharded tensors, and it imports that package. Where it is not imported, no tensor is sharded.
"""

from __future__ import annotations

import sys

from torch import Tensor


def is_sharded(value: Tensor) -> bool:
    """Return whether a tensor is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def local_part(value: Tensor) -> Tensor:
    """Return this rank's part of a tensor; call it under `no_grad`, since autograd would track it."""
    return value.to_local() if is_sharded(value) else value  # type: ignore[attr-defined]


def full_tensor(value: Tensor) -> Tensor:
    """Return the whole of a tensor; all ranks that hold a part of it must call this."""
    return value.full_tensor() if is_sharded(value) else value  # type: ignore[attr-defined]
