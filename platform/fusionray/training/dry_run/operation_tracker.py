"""Track a computation: every operation when it is dispatched, every storage until it is freed.

Operations are counted by torch's own formulas: a multiplication and an addition are two. Tensors that follow from
parameters alone (weights cast to bf16, sums of squared weights) do not grow with the batch and are counted separately,
as are gradients of parameters.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from fusionray.types import Batch


class OperationTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count operations and follow the bytes of new tensors, while active."""

    def __init__(self, given: Iterable[Tensor]) -> None:
        """Start to track; `given`: existing parameters and buffers, which are not counted."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.fixed = {tensor.untyped_storage()._cdata for tensor in given}
        self.live: dict[int, int] = {}
        self.flops: int = 0
        self.bytes = self.peak_bytes = 0
        self.fixed_bytes = self.peak_fixed_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += int(formula(*args, **kwargs, out_val=result))
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        fixed = bool(inputs) and all(tensor.untyped_storage()._cdata in self.fixed for tensor in inputs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.follow(leaf.untyped_storage(), fixed=fixed)
        return result

    def follow(self, storage: torch.UntypedStorage, *, fixed: bool) -> None:
        """Count a new storage until it is freed."""
        key = storage._cdata
        if key in self.live or key in self.fixed:
            return
        self.live[key] = storage.nbytes()
        if fixed:
            self.fixed.add(key)
            self.fixed_bytes += storage.nbytes()
            self.peak_fixed_bytes = max(self.peak_fixed_bytes, self.fixed_bytes)
        else:
            self.bytes += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self.bytes)
        weakref.finalize(storage, self.release, key)

    def release(self, key: int) -> None:
        """Stop counting a storage."""
        size = self.live.pop(key, 0)
        if key in self.fixed:
            self.fixed.discard(key)
            self.fixed_bytes -= size
        else:
            self.bytes -= size

    def release_gradient(self, parameter: Tensor) -> None:
        """Stop counting a parameter's gradient: it does not grow with the batch."""
        assert parameter.grad is not None
        self.release(parameter.grad.untyped_storage()._cdata)


def count_bytes(values: Iterable[Batch | Tensor]) -> int:
    """Return the bytes of all storages of batches and tensors, each counted once."""
    storages: dict[int, int] = {}

    def add(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    for value in values:
        if isinstance(value, Batch):
            value.map(add)
        else:
            add(value)
    return sum(storages.values())


def count_flops(run: Callable[[], object]) -> int:
    """Count the operations of `run()`, without gradients."""
    tracker = OperationTracker([])
    with torch.no_grad(), tracker:
        run()
    return tracker.flops
