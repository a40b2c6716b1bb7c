"""What the tests of leases share: a clock that they move, and leases as jobs, caches and other machines take them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fusionray.storage.lease import Lease

LONG_SECONDS = 3600.0


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(folder: Path, clock: Clock) -> Lease:
    return Lease(folder, timeout_seconds=10.0, clock=clock)


def make_owner(folder: Path, timeout_seconds: float = LONG_SECONDS) -> Lease:
    """Make a lease that creates and removes its folder, as in the engine cache."""
    return Lease(folder, timeout_seconds=timeout_seconds, trust_living=True, owns_folder=True)


def sign_elsewhere(folder: Path, number: int = 1) -> Path:
    """Take a lease as a process of another machine does."""
    path = folder / f"lease-{number:06d}"
    told = {"token": "t", "host": "far", "machine": "other boot", "pid": os.getpid(), "started": "1"}
    path.write_text(json.dumps(told))
    return path
