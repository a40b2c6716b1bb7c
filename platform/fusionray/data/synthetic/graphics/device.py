"""What depends on the device of a picture: on a GPU the host neither looks at values nor copies any while it draws.

On a CPU, layers that no row has are left out, and the others are drawn in small windows. A GPU draws all of them whole:
its pixels cost less than the waiting of the host, and than a kernel for each row.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


def host_decides(device: torch.device) -> bool:
    """Return whether the host may look at values on this device without waiting."""
    return device.type == "cpu"


def is_needed(wanted: Tensor) -> bool:
    """Return whether any row wants a layer, given bool [N, ...]; on a GPU always true."""
    return not host_decides(wanted.device) or bool(wanted.any())


def constant_like(values: tuple[Any, ...], like: Tensor) -> Tensor:
    """Return constants, nested tuples of numbers, with the dtype and device of `like`; do not change them in place."""
    return _keep_constant(values, like.dtype, like.device)


@lru_cache(maxsize=512)
def _keep_constant(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # Made once: a copy from the host's pageable memory waits for all that the device has queued.
    with torch.inference_mode(mode=False):
        return torch.tensor(values, dtype=dtype, device=device)
