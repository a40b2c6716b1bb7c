"""libvips as this product uses it: one thread, no cache, and no decoder but those of a few formats."""

from __future__ import annotations

import functools
import threading
from typing import Any

# Formats whose files may come from anybody; libvips knows many more, some of them by code that nobody attacks daily.
LOADERS = ("VipsForeignLoadPng", "VipsForeignLoadJpeg", "VipsForeignLoadTiff", "VipsForeignLoadWebp")
RESTRICTING = threading.Lock()


def load_vips() -> Any:
    """Import pyvips and restrict it, for the whole process; its import takes 0.1 s of those who need it."""
    with RESTRICTING:
        return restrict_vips()


@functools.cache
def restrict_vips() -> Any:
    # Once: for a moment no loader is allowed, and a thread that opened a picture then would not know its format.
    import pyvips

    pyvips.operation_block_set("VipsForeignLoad", True)
    for loader in LOADERS:
        pyvips.operation_block_set(loader, False)
    # Each thread has buffers of its own, as high as several strips of the whole width.
    pyvips.concurrency_set(1)
    pyvips.cache_set_max(0)
    return pyvips


def first_line(error: Exception) -> str:
    """Return the first line of an error of libvips that says something."""
    lines = [line.strip() for line in str(error).replace("b'", "").splitlines()]
    said = [line for line in lines[1:] if line] or [line for line in lines if line]
    return said[0] if said else "libvips gives no reason"
