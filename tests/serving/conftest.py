from __future__ import annotations

import warnings
from pathlib import Path

import pytest

# Ray Serve uses deprecated parts of pydantic while it is imported; that is not ours to mend, so it is imported once
# here, before warnings become errors.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import ray.serve  # noqa: F401

from fusionray.serving.jobs.store import JobStore


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    """An empty store of jobs."""
    return JobStore(tmp_path / "store", 3600.0)
