"""What the verbs share."""

from __future__ import annotations

import argparse
from pathlib import Path

from fusionray.errors import InputMissing


def add_common(parser: argparse.ArgumentParser, *, cluster: bool = True) -> None:
    parser.add_argument("--config", metavar="FILE", help="YAML file with settings")
    if cluster:
        parser.add_argument("--address", help="Ray cluster to use; default: one on this machine, stopped at the end")
    parser.epilog = "KEY=VALUE, anywhere behind the verb: settings that win over the file"
    parser.set_defaults(takes_overrides=True)


def find_serve_root() -> Path:
    """Find the checkout that holds `serve/app.py`: around this package, or the working folder.

    Raises: InputMissing where only the wheel is installed.
    """
    for root in (Path(__file__).resolve().parents[3], Path.cwd()):
        if (root / "serve" / "app.py").is_file():
            return root
    raise InputMissing("serve/app.py is not part of the installed package; run this in a checkout of the repository")
