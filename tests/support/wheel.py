"""Build the wheel from a copy of the checkout: a build leaves folders behind where it runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.child_python import ROOT

FOLDERS = ("platform", "jobs", "serve", "cluster", "tests")
FILES = ("pyproject.toml", "README.md", "LICENSE")


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout inside `folder`, and return its path."""
    tree = folder / "tree"
    tree.mkdir()
    for name in FOLDERS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", ".*"))
    for name in FILES:
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, tree / name)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(tree)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel
