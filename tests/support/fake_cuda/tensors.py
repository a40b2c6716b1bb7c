"""Tensors without values on a CUDA device that does not exist, and what code would wait for if it did.

`install` must run before anything imports torch.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

PACKAGE = "/platform/fusionray/"
# Operations that start no kernel: they return another view of the same memory, or memory without values.
FREE = {
    "_reshape_alias",
    "_unsafe_view",
    "alias",
    "as_strided",
    "detach",
    "empty",
    "empty_like",
    "empty_strided",
    "expand",
    "lift_fresh",
    "new_empty",
    "permute",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "t",
    "transpose",
    "unbind",
    "unsqueeze",
    "view",
}


def install(library: str) -> None:
    """Load the CUDA device of `device.cpp`."""
    assert "torch" not in sys.modules, "torch asks for its CUDA hooks once, so they must be there before"
    loaded = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    loaded.install.restype = ctypes.c_bool
    assert loaded.install(), "something asked torch for CUDA before the fake device was there"


@contextmanager
def fake_cuda() -> Iterator[Any]:
    """Let tensors be created on `cuda:0`, without values; yield a `Watch`, which counts from its `start` on."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    torch._C._ensureCUDADeviceGuardSet()
    with ExitStack() as stack:
        # torch.autocast and the loss scaler turn themselves off where torch finds no GPU.
        stack.enter_context(mock.patch("torch.cuda.amp.common.amp_definitely_not_available", return_value=False))
        stack.enter_context(mock.patch("torch.cuda.is_bf16_supported", return_value=True))
        # Where torch takes several tensors at once, it asks for their exact type.
        types = [*torch.utils._foreach_utils._foreach_supported_types, FakeTensor]
        stack.enter_context(mock.patch("torch.utils._foreach_utils._foreach_supported_types", types))
        stack.enter_context(mock.patch("torch.nn.Module.to", move))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield stack.enter_context(build_watch())


def move(module: Any, device: Any = None, *, memory_format: Any = None) -> Any:
    """Do what `Module.to` does: torch swaps tensors in place, which those without values do not allow."""
    from torch.nn import Parameter

    def moved(value: Any) -> Any:
        if device is not None:
            value = value.detach().to(device)
        return value.to(memory_format=memory_format) if memory_format is not None and value.ndim == 4 else value

    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = Parameter(moved(parameter.detach()), parameter.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = moved(buffer)
    return module


def build_watch() -> Any:
    """Build the mode that sees every operation; torch must not be imported with this module."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

    class Watch(TorchDispatchMode):
        """Count kernels by operation, and waits of the host by the line of the package that waits."""

        def __init__(self) -> None:
            super().__init__()
            self.kernels: Counter[str] = Counter()
            self.waits: Counter[str] = Counter()
            self.lines: Counter[str] = Counter()

        def start(self) -> None:
            """Count from here on."""
            self.kernels.clear()
            self.lines.clear()
            self.waits.clear()

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            kwargs = kwargs or {}
            if function.namespace == "prim":
                return function(*args, **kwargs)
            name = function._overloadpacket.__name__
            first = args[0] if args else None
            on_gpu = isinstance(first, torch.Tensor) and first.device.type == "cuda"
            if on_gpu and name == "_local_scalar_dense":
                self.waits[find_line()] += 1
                # Asked whether something is there, yes; a float is a flag of something bad, or the size of something.
                return 0.0 if first.is_floating_point() else 1
            if on_gpu and name == "nonzero":
                self.waits[find_line()] += 1
                return first.new_empty((first.shape[0], first.ndim), dtype=torch.int64)
            if name in {"_to_copy", "copy_"}:
                source = args[1] if name == "copy_" else first
                target = first.device if name == "copy_" else torch.device(kwargs.get("device") or first.device)
                if {source.device.type, target.type} == {"cpu", "cuda"}:
                    queued = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
                    if not queued:
                        self.waits[find_line()] += 1
                    if target.type == "cpu":
                        with _disable_current_modes():
                            return torch.ones(first.shape, dtype=kwargs.get("dtype") or first.dtype)
            # torch knows no shapes for this one, which returns nothing.
            result = None if name == "_fused_sgd_" else function(*args, **kwargs)
            if name not in FREE and any(
                isinstance(value, torch.Tensor) and value.device.type == "cuda" for value in flatten((result, args))
            ):
                self.kernels[name] += 1
                self.lines[find_line()] += 1
            return result

    return Watch()


def flatten(value: Any) -> Iterator[Any]:
    """Yield the parts of nested tuples and lists."""
    if isinstance(value, tuple | list):
        for part in value:
            yield from flatten(part)
    else:
        yield value


def find_line() -> str:
    """Return `file:line: function` of the innermost line of the package on the stack."""
    frame = sys._getframe(2)
    while frame is not None and PACKAGE not in frame.f_code.co_filename:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return "outside of the package, as the backward pass is"
    return f"{frame.f_code.co_filename.split(PACKAGE)[1]}:{frame.f_lineno}: {frame.f_code.co_name}"
