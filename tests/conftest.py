"""What all tests share: their plugins, one Ray for the session, and the folder of real data where there is one."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ("tests.support.slow_tier", "tests.support.slowest", "tests.support.lanes")

ROOT = Path(__file__).resolve().parents[1]

# Before anything imports numpy or torch, and for every process that tests start: the tensors of tests are so small that
# threads would only spin, waiting for each other.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"
# Tests that set a number of threads on purpose, and ONNX Runtime, wait asleep.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
# Ray's workers are otherwise so nice that the tests beside them starve them.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray has it so
# Before anything imports Ray: it reads its authentication once.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
# A test key is made where a user's data lies: not in the home folder of whoever runs the tests.
DATA_FOLDER = tempfile.TemporaryDirectory(prefix="fr-data-", ignore_cleanup_errors=True)
os.environ["XDG_DATA_HOME"] = os.environ["XDG_CACHE_HOME"] = DATA_FOLDER.name

from fusionray.environment import apply_defaults  # noqa: E402
from tests.support.service_logs import open_listener  # noqa: E402

apply_defaults()


@pytest.fixture(scope="session")
def proxy_log() -> Iterator[socket.socket]:
    """The socket to which the HAProxy of this test session's Ray sends its log."""
    with open_listener() as listener:
        yield listener


@pytest.fixture(scope="session")
def ray_session(proxy_log: socket.socket) -> Iterator[None]:
    """A Ray of this test session alone, in a folder of its own."""
    from fusionray.ray_cluster.connection import disconnect, start_local

    # The path of a socket in it may have 107 characters: pytest's own folders are too deep.
    with tempfile.TemporaryDirectory(prefix="fr-ray-", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        os.environ["RAY_SERVE_HAPROXY_LOG_TARGET"] = f"127.0.0.1:{proxy_log.getsockname()[1]}"
        start_local()
        try:
            yield
        finally:
            disconnect()
            del os.environ["RAY_TMPDIR"], os.environ["RAY_SERVE_HAPROXY_LOG_TARGET"]


@pytest.fixture(scope="session")
def style_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `run`, a run of style transfer of one step, and `bundle`, its export; do not change them."""
    from tests.support.tiny_style import write_style_bundle

    folder = tmp_path_factory.mktemp("style-bundle")
    write_style_bundle(folder)
    return folder


@pytest.fixture(scope="session")
def real_faces() -> Path:
    """The folder of real faces that lies beside some checkouts; never part of the repository."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real faces at {folder}")
    return folder
