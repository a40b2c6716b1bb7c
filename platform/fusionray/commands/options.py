"""The options that most verbs take: a file of settings, a cluster, overrides."""

from __future__ import annotations

import argparse


def add_common(parser: argparse.ArgumentParser, *, cluster: bool = True) -> None:
    parser.add_argument("--config", metavar="FILE", help="YAML file with settings")
    if cluster:
        parser.add_argument("--address", help="Ray cluster to use; default: one on this machine, stopped at the end")
    parser.epilog = "KEY=VALUE, anywhere behind the verb: settings that win over the file"
    parser.set_defaults(takes_overrides=True)
