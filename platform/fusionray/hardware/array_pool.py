"""Memory of arrays that is used again: each page of new memory costs a fault when it is first touched."""

from __future__ import annotations

import math
import threading
import weakref

import numpy as np
from numpy.typing import NDArray

# A block that is larger than wanted by this factor is left to larger arrays.
LARGEST_EXCESS = 2


class ArrayPool:
    """Allocate uint8 arrays; the memory of one to which nothing refers any more becomes that of a later one.

    At most `kept_bytes` are kept for later; the oldest go first. Threads may share a pool.
    """

    def __init__(self, kept_bytes: float = math.inf) -> None:
        self.kept_bytes = kept_bytes
        self.free: list[NDArray[np.uint8]] = []
        # The end of an array may return its memory at any point, also within the methods below.
        self.lock = threading.RLock()

    def allocate(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return an array of this shape, not initialised."""
        size = math.prod(shape)
        if not size:
            return np.empty(shape, np.uint8)
        memory = self.take(size)
        # Every view refers to the array that has no other array beneath: to this one, since a memoryview is none. So it
        # lives as long as the last view.
        array = np.frombuffer(memoryview(memory), np.uint8, size)  # type: ignore[arg-type]
        weakref.finalize(array, self.put, memory).atexit = False
        return array.reshape(shape)

    def take(self, size: int) -> NDArray[np.uint8]:
        """Take the smallest block that holds `size` bytes, or new memory."""
        with self.lock:
            fitting = [block for block in self.free if size <= len(block) <= LARGEST_EXCESS * size]
            if not fitting:
                return np.empty(size, np.uint8)
            best = min(fitting, key=len)
            # By identity: arrays compare their values, and places may move meanwhile.
            self.free = [block for block in self.free if block is not best]
        return best

    def put(self, memory: NDArray[np.uint8]) -> None:
        """Keep memory that no array refers to any more."""
        with self.lock:
            self.free.append(memory)
            while sum(map(len, self.free)) > self.kept_bytes:
                del self.free[0]
