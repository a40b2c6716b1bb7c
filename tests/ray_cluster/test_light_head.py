from __future__ import annotations

import os
from pathlib import Path

import pytest

from fusionray.hardware.processes import PROC, add_descendants, list_processes


@pytest.mark.usefixtures("ray_session")
def test_a_ray_of_one_machine_has_no_dashboard_no_autoscaler_and_nobody_who_reads_logs() -> None:
    family = add_descendants([os.getpid()], list_processes())
    commands = [(PROC / str(pid) / "cmdline").read_text() for pid in family]
    ours = "\n".join(command for command in commands if "ray" in command)
    assert "gcs_server" in ours
    assert "raylet" in ours
    assert "dashboard/dashboard.py" not in ours
    assert "monitor.py" not in ours


@pytest.mark.usefixtures("ray_session")
def test_its_agent_does_not_wait_for_a_dashboard() -> None:
    log = Path(os.environ["RAY_TMPDIR"]) / "ray" / "session_latest" / "logs" / "dashboard_agent.log"
    text = log.read_text()
    assert "Dashboard agent grpc address" in text
    assert "Get dashboard http address failed" not in text
