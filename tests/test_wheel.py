"""The wheel in an empty environment: prepare, train, export, fuse and serve without a checkout (`make wheel-check`)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.support.child_python import ROOT
from tests.support.pictures import draw_person
from tests.support.wheel import build_wheel

COMMAND_SECONDS = 600
START_SECONDS = 180
SMALL_RUN = ("budget.max_seconds=null", "workers.cpus_per_worker=0.5", "workers.threads=1")


class Installed:
    """A fresh environment with the wheel in it, and a folder to work in that holds no checkout."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "venv" / "bin"
        self.work = folder / "work"
        self.work.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RAY_", "VIRTUAL"))}
        # Sockets of Ray need a short path.
        self.environment = {**kept, "PATH": f"{self.bin}:{os.environ['PATH']}", "RAY_ADDRESS": ""}
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        pip = [self.bin / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        self.run(*pip, "--constraint", ROOT / "requirements.lock", build_wheel(folder))
        # The face models of the default detector come in this wheel, without its own dependencies.
        self.run(*pip, "--no-deps", "mediapipe==0.10.21")

    def run(self, *command: str | Path) -> str:
        """Run a command in the environment; fails with what it said."""
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.work,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def fusionray(self, *arguments: str) -> str:
        """Run a verb."""
        return self.run(self.bin / "fusionray", *arguments)


@pytest.mark.slow(seconds=210)
@pytest.mark.timeout(1500)
def test_the_wheel_alone_prepares_trains_exports_fuses_and_serves(tmp_path: Path) -> None:
    installed = Installed(tmp_path)
    assert "site-packages" in installed.run("python", "-c", "import fusionray; print(fusionray.__file__)")
    # More than one folder named platform/ or serve/ on the path would show here.
    installed.run("python", "-c", "import platform; platform.system()")
    installed.fusionray("prepare", "synthetic://people=24,images=4", "shards", "size=64", "landmarks=exact")
    shared = ("data.shards=shards", *SMALL_RUN, "--output", "runs")
    installed.fusionray("train", "--preset", "identity-small", *shared, "run.name=encoder", "budget.images=64")
    fusion = ("run.name=fusion", "budget.images=32", "recipe.identity_encoder=runs/encoder")
    installed.fusionray("train", "--preset", "tiny-64", *shared, *fusion)
    installed.fusionray("export", "runs/fusion", "--output", "bundle")
    for seed, name in enumerate(("a", "b")):
        (installed.work / f"{name}.png").write_bytes(encode(draw_person(seed, 256)))
    installed.fusionray("fuse", "a.png", "b.png", "fused.png", "--bundle", "bundle")
    assert "AI" in installed.fusionray("verify", "fused.png")
    serve_and_ask(installed)


def encode(picture: object) -> bytes:
    """Encode a picture, uint8 [H,W,3] RGB, as PNG."""
    from fusionray.faces.image_files.decode import encode_image

    return encode_image(picture)  # type: ignore[arg-type]


def serve_and_ask(installed: Installed) -> None:
    """Serve the bundle, ask for a fused picture and for the page, and end the service with SIGTERM."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(installed.bin / "fusionray"), "serve", "--bundle", "bundle", "--port", str(port)]
    with (installed.work / "serve.log").open("wb") as log:
        service = subprocess.Popen(command, cwd=installed.work, env=installed.environment, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(url):
            said = (installed.work / "serve.log").read_text()
            assert service.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.5)
        files = {
            role: (installed.work / f"{name}.png").read_bytes() for role, name in (("source", "a"), ("target", "b"))
        }
        answer = httpx.post(f"{url}/v1/fuse", files=files, timeout=60)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "image/png"
        assert "<html" in httpx.get(url, timeout=60).text
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(120)


def is_ready(url: str) -> bool:
    """Tell whether the service answers that it is ready."""
    try:
        return httpx.get(f"{url}/readyz", timeout=10).status_code == 200
    except httpx.TransportError:
        return False
