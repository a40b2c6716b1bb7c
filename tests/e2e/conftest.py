"""One workspace for all tests of the path: its shards are made once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from tests.support.workspace import Workspace


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, ray_session: None) -> Iterator[Workspace]:
    """Shards and an identity encoder."""
    # The path of a socket in it may have 107 characters: pytest's own folders are too deep.
    with tempfile.TemporaryDirectory(prefix="fr-e2e-", ignore_cleanup_errors=True) as ray_folder:
        workspace = Workspace(tmp_path_factory.mktemp("path"), ray_folder)
        workspace.make_inputs()
        yield workspace
