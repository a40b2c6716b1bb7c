"""Python in a process of its own, whose imports, memory and environment are not those of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Below the limit of a test itself, which would leave the child running.
TIMEOUT_SECONDS = 240


def run_python(*arguments: str, folder: Path = ROOT, **variables: str) -> str:
    """Run Python in `folder` and return what it printed; it must succeed.

    It finds the package and these tests, unless `variables`, which change its environment, name another PYTHONPATH.
    """
    path = os.pathsep.join((str(ROOT / "platform"), str(ROOT)))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
