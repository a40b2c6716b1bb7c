from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

# `make chaos` asks for more, CHAOS_ROUNDS=N; `make test` tries each fault once.
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "1"))


@pytest.fixture(scope="session")
def rounds() -> int:
    """How often each fault is tried in a run."""
    return ROUNDS


@pytest.fixture
def ray_folder() -> Iterator[str]:
    """A folder for a Ray of its own; the path of a socket in it may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="fr-chaos-", ignore_cleanup_errors=True) as folder:
        yield folder
