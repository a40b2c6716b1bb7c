from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

# `make chaos` repeats each fault CHAOS_ROUNDS=N times; `make test` runs it once.
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "1"))


@pytest.fixture(scope="session")
def rounds() -> int:
    """Number of repetitions of each fault."""
    return ROUNDS


@pytest.fixture
def ray_folder() -> Iterator[str]:
    """A folder for a separate Ray cluster; the path of a socket in it may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="fr-chaos-", ignore_cleanup_errors=True) as folder:
        yield folder
