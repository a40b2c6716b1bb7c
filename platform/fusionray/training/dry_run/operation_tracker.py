"""Watching a computation: every operation as it is dispatched, every storage until it is freed.

Operations are counted by torch's own formulas, a multiplication and an addition as two. What is made of parameters
alone (weights cast to bf16, sums of squared weights) does not grow with the batch and is kept apart, as are parameters'
gradients.
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
        """`given`: parameters and buffers, which are there already and are not counted."""
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
        """Count a storage until it is freed, unless it is known."""
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
        weakref.finalize(storage, self.forget, key)

    def forget(self, key: int) -> None:
        """Count a storage no longer."""
        size = self.live.pop(key, 0)
        if key in self.fixed:
            self.fixed.discard(key)
            self.fixed_bytes -= size
        else:
            self.bytes -= size

    def forget_gradient(self, parameter: Tensor) -> None:
        """Count a parameter's gradient no longer: it does not grow with the batch."""
        assert parameter.grad is not None
        self.forget(parameter.grad.untyped_storage()._cdata)


def count_bytes(values: Iterable[Batch | Tensor]) -> int:
    """Add up the storages behind batches and tensors, each once."""
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    for value in values:
        if isinstance(value, Batch):
            value.map(note)
        else:
            note(value)
    return sum(storages.values())


def count_flops(run: Callable[[], object]) -> int:
    """Count the operations of anything, without gradients."""
    watcher = OperationTracker([])
    with torch.no_grad(), watcher:
        run()
    return watcher.flops
