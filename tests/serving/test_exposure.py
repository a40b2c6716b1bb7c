"""`fusionray serve --host`: which sockets a service on one machine has, who is answered on them, and what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import pytest

from fusionray.hardware.processes import find_processes
from fusionray.ray_cluster.connection import find_free_port
from fusionray.serving.addresses import write_url
from fusionray.serving.auth.key_file import add_key
from tests.faults.driver import wait_until
from tests.support.child_python import ROOT
from tests.support.sockets import list_listeners
from tests.support.tiny_bundle import write_tiny_bundle

pytestmark = pytest.mark.starts_ray


def find_own_address() -> str:
    """An address of this machine that is not loopback."""
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout.split()
    addresses = [address for address in found if ":" not in address]
    if not addresses:
        pytest.skip("this machine has no address but loopback")
    return addresses[0]


@pytest.mark.parametrize(
    ("host", "end"),
    [
        pytest.param("0.0.0.0", signal.SIGTERM, marks=pytest.mark.slow(seconds=25)),
        # All addresses of both kinds.
        pytest.param("::", signal.SIGTERM, marks=pytest.mark.slow(seconds=25)),
        # Ray's agents wait a minute for a head that is dead.
        pytest.param("its own", signal.SIGKILL, marks=pytest.mark.slow(seconds=85)),
    ],
)
def test_only_the_service_listens_beyond_loopback(tmp_path: Path, host: str, end: signal.Signals) -> None:
    write_tiny_bundle(tmp_path / "bundle")
    keys = tmp_path / "keys.yaml"
    own, port, key = find_own_address(), find_free_port(), add_key(keys, "ann")
    host = own if host == "its own" else host
    command = [sys.executable, "-m", "fusionray.cli", "serve", "--bundle", str(tmp_path / "bundle")]
    # Every kind of replica.
    command += ["faces.separate_deployment=true", "fuser.separate_deployment=true", f"keys.file={keys}"]
    with tempfile.TemporaryDirectory(prefix="fr-exposed-", ignore_cleanup_errors=True) as folder:
        variable = f"RAY_TMPDIR={folder}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        service = subprocess.Popen(
            [*command, "--host", host, "--port", str(port)],
            stdout=subprocess.PIPE,
            text=True,
            env={**inherited, "PYTHONPATH": str(ROOT / "platform"), "RAY_TMPDIR": folder},
        )
        try:
            assert service.stdout is not None
            assert write_url(host, port) in service.stdout.readline()
            listeners = list_listeners(find_processes(variable=variable))
            assert {address for address in listeners if not address[0].startswith("127.")} == {(host, port)}
            url = f"http://{own}:{port}/v1/models"
            assert httpx.get(url).status_code == 401
            assert httpx.get(url, headers={"Authorization": f"Bearer {key}"}).status_code == 200
            service.send_signal(end)
            service.wait(timeout=60)
        finally:
            service.kill()
            service.communicate()
            wait_until("the end of all processes", lambda: not find_processes(variable=variable))
        assert service.returncode == (0 if end == signal.SIGTERM else -signal.SIGKILL)
