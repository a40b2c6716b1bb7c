from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fusionray.cli import parse
from tests.cluster.manifests import ROOT

UNIT = ROOT / "cluster" / "systemd" / "fusionray-serve.service"


def verify(unit: Path) -> str:
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    return done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_systemd_has_no_complaint_of_the_unit_and_finds_one(tmp_path: Path) -> None:
    # It looks whether the command exists.
    text = UNIT.read_text().replace("/opt/fusionray/bin/fusionray", sys.executable)
    unit = tmp_path / UNIT.name
    unit.write_text(text)
    assert verify(unit) == ""
    unit.write_text(text.replace("KillMode=mixed", "KillMode=gentle"))
    assert "gentle" in verify(unit)


def test_its_command_is_one_that_the_product_takes() -> None:
    (command,) = re.findall(r"^ExecStart=\S+/fusionray (.*)$", UNIT.read_text(), re.MULTILINE)
    options = parse(command.split())
    assert options.host == "0.0.0.0"
