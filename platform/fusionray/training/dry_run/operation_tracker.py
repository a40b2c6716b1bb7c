"""Track FLOPs and tensor memory of a computation with a TorchDispatchMode.

FLOPs follow torch.utils.flop_counter: matrix multiplications, convolutions and attention only, a multiply-add as two.
Memory is that of new storages, each until it is freed. Tensors computed from parameters and buffers alone (weights cast
to bf16, sums of squared weights) do not grow with the batch and are counted separately.
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
    """Count FLOPs, and the bytes of new storages that are not freed yet, while active.

    `flops`: FLOPs so far. `bytes`, `peak_bytes`: bytes of live storages, now and at most.
    `batch_independent_bytes`, `peak_batch_independent_bytes`: the same of storages computed from parameters and buffers
    alone, which `bytes` does not include. `live`: bytes of each live storage. `batch_independent`: keys of storages of
    parameters and buffers, and of those computed from them alone.
    """

    def __init__(self, parameters_and_buffers: Iterable[Tensor]) -> None:
        """Start with all counts at 0; `parameters_and_buffers`: existing tensors that do not grow with the batch."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.batch_independent = {tensor.untyped_storage()._cdata for tensor in parameters_and_buffers}
        self.live: dict[int, int] = {}
        self.flops: int = 0
        self.bytes = self.peak_bytes = 0
        self.batch_independent_bytes = self.peak_batch_independent_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        inputs = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += int(formula(*args, **kwargs, out_val=result))
        batch_independent = bool(inputs) and inputs <= self.batch_independent
        for leaf in tree_leaves(result):
            # A view of an input is not a new storage, even if the input is older than the tracker.
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in inputs:
                self.track_storage(leaf.untyped_storage(), batch_independent=batch_independent)
        return result

    def track_storage(self, storage: torch.UntypedStorage, *, batch_independent: bool) -> None:
        """Count a storage until it is freed, unless it is counted already."""
        key = storage._cdata
        if key in self.live or key in self.batch_independent:
            return
        self.live[key] = storage.nbytes()
        if batch_independent:
            self.batch_independent.add(key)
            self.batch_independent_bytes += storage.nbytes()
            self.peak_batch_independent_bytes = max(self.peak_batch_independent_bytes, self.batch_independent_bytes)
        else:
            self.bytes += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self.bytes)
        weakref.finalize(storage, self.untrack, key)

    def untrack(self, key: int) -> None:
        """Stop counting a storage; does nothing if it is not counted."""
        size = self.live.pop(key, 0)
        if key in self.batch_independent:
            self.batch_independent.discard(key)
            self.batch_independent_bytes -= size
        else:
            self.bytes -= size

    def untrack_gradient(self, parameter: Tensor) -> None:
        """Stop counting a parameter's gradient, which does not grow with the batch."""
        assert parameter.grad is not None
        self.untrack(parameter.grad.untyped_storage()._cdata)


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
    """Return the FLOPs of `run()`, called under `torch.no_grad()`."""
    tracker = OperationTracker([])
    with torch.no_grad(), tracker:
        run()
    return tracker.flops
