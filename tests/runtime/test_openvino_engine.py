"""OpenVINO in a process of its own, as in a replica: in one process with torch and other libraries it has crashed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = Path(__file__).with_name("openvino_cases.py")


@pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is not installed")
def test_openvino_cases_pass_in_a_process_of_their_own() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
