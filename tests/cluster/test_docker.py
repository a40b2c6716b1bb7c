"""The images: no complaint of hadolint, and what the build stage runs gives an environment that works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cluster.manifests import ROOT

DOCKERFILE = ROOT / "cluster" / "docker" / "Dockerfile"
SECONDS = 900


def run(*command: str, folder: Path, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_hadolint_has_no_complaint_and_finds_one() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    assert run(str(hadolint), str(DOCKERFILE), folder=ROOT) == ""
    worse = DOCKERFILE.read_text().replace("--no-install-recommends ", "")
    done = subprocess.run([hadolint, "-"], input=worse, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "DL3015" in done.stdout


def test_the_build_sees_what_it_copies() -> None:
    sent = {
        line[1:] for line in DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    lines = re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    copied = {name for line in lines for name in line.split()[:-1]}
    assert copied == sent
    assert all((ROOT / name).exists() for name in copied)


COMPOSE = DOCKERFILE.with_name("compose.yaml")
SECRETS = ("FUSIONRAY_API_KEY", "FUSIONRAY_KEY_FILE", "GRAFANA_PASSWORD", "POSTGRES_PASSWORD")


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is missing: apt-get install it")
def test_docker_compose_reads_its_file_and_starts_nothing_without_secrets() -> None:
    variables = {name: f"of {name}" for name in SECRETS} | {"FUSIONRAY_KEY_FILE": "/key"}
    command = ("docker-compose", "--file", str(COMPOSE), "config")
    services = yaml.safe_load(run(*command, folder=ROOT, **variables))["services"]
    # Callers reach the service; what has no keys of its own is reached from this machine alone.
    ports = {name: port for name, service in services.items() for port in service.get("ports", ())}
    assert ports.pop("serve") == {"published": 8000, "target": 8000}
    assert all(port.startswith("127.0.0.1:") for port in ports.values())
    mounted = [each.split(":")[0] for service in services.values() for each in service["volumes"] if each[0] == "/"]
    assert len(mounted) == 4
    assert all(Path(source).exists() for source in mounted if source != "/key")
    for name in SECRETS:
        rest = {key: value for key, value in variables.items() if key != name}
        refused = subprocess.run(command, env={"PATH": os.environ["PATH"], **rest}, capture_output=True, check=False)
        assert refused.returncode != 0
        assert name in refused.stderr.decode()


def read_build_steps() -> list[str]:
    """The lines of the build stage that run or copy something, with their continuations."""
    stage = DOCKERFILE.read_text().partition(" AS build\n")[2].partition("\nFROM ")[0]
    stage = re.sub(r"^#.*\n", "", stage, flags=re.MULTILINE).replace("\\\n", " ")
    return [line for line in stage.splitlines() if line.startswith(("RUN ", "COPY "))]


@pytest.mark.slow(seconds=220)
def test_the_steps_of_the_build_make_an_environment_that_works(tmp_path: Path) -> None:
    # There is no Docker where this runs: the steps are taken in folders that stand for those of the image.
    source, environment = tmp_path / "src", tmp_path / "venv"
    source.mkdir()
    for step in read_build_steps():
        word, _, rest = step.partition(" ")
        if word == "COPY":
            *names, target = rest.split()
            for name in names:
                copy(ROOT / name, source / name if target == "./" else source / target)
        else:
            line = rest.replace("/opt/venv", str(environment)).replace(" python -c", f" {sys.executable} -c")
            line = line.replace("python -m venv", f"{sys.executable} -m venv")
            run("bash", "-euc", line, folder=source, VARIANT="cpu", TORCH_INDEX="https://pypi.org/simple")
    printed = run(str(environment / "bin" / "fusionray"), "--version", folder=tmp_path)
    assert printed.startswith("fusionray ")
    opened = (
        "from fusionray.faces.detectors.default_detector import DefaultDetector; import ray, torch; DefaultDetector()"
    )
    run(str(environment / "bin" / "python"), "-c", opened, folder=tmp_path)


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    else:
        shutil.copy(source, target)
