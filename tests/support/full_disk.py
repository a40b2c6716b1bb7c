"""A full disk, as a limit of the length of files: a write in the midst is cut short, the next one fails."""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk(num_bytes: int = 0) -> Iterator[None]:
    """Let each file that this process writes have at most `num_bytes` bytes.

    Modules that it imports meanwhile leave no bytecode: Python would keep it cut short, for every later process.
    """
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    writes_bytecode, sys.dont_write_bytecode = not sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
        sys.dont_write_bytecode = not writes_bytecode
        signal.signal(signal.SIGXFSZ, handler)
