"""All processes of one node: those of its `ray start` session, and their descendants."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

from fusionray.errors import ClusterUnavailable
from fusionray.hardware.processes import add_descendants, list_processes

KILL_SECONDS = 15.0
POLL_SECONDS = 0.05


def list_session(leader: int) -> set[int]:
    """Return the pids of the living processes of a session and of their descendants, in whatever session those are.

    A submitted job's driver, for one, leads a session of its own.
    """
    living = list_processes()
    return add_descendants({pid for pid, process in living.items() if process.session == leader}, living)


def has_ended(leader: subprocess.Popen[bytes]) -> bool:
    """Tell whether a process has ended, without reaping it, so that its pid is not reused."""
    if leader.returncode is not None:
        return True
    return os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def terminate(leader: subprocess.Popen[bytes], timeout_seconds: float) -> None:
    """Ask the leader to end its processes and wait up to a timeout; `kill_session` kills the rest."""
    if has_ended(leader):
        return
    os.kill(leader.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_seconds
    while not has_ended(leader) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def kill_session(leader: subprocess.Popen[bytes]) -> None:
    """Kill all processes of the leader's session, their descendants and the leader, and wait until they are gone.

    Raises: ClusterUnavailable if some live on.
    """
    if leader.returncode is not None:
        return
    deadline = time.monotonic() + KILL_SECONDS
    # Repeat: a process may have started while the others were listed.
    while living := list_session(leader.pid):
        # All are stopped before the first is killed: a raylet whose agent is gone would still deregister from the head.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        if time.monotonic() > deadline:
            raise ClusterUnavailable(f"processes {sorted(living)} do not end; end them by hand")
        time.sleep(POLL_SECONDS)
    leader.wait()
