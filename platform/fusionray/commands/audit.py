"""The verb for the audit log of a service."""

from __future__ import annotations

import argparse
from pathlib import Path

from fusionray.commands.parser import Verbs, add_verb, set_run


def add_audit(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "audit",
        "Check that no line of an audit log was changed or removed.",
        arguments="PATH [--last HASH]",
        details="It prints the hash of the last line; lines cut off at the end show only by that of an earlier check.",
        examples=[
            ("fusionray audit audit.jsonl", "the log and its rotated files"),
            ("fusionray audit audit.jsonl --last 5e0d...", "the line with this hash must still be there"),
        ],
    )
    parser.add_argument("path", metavar="PATH", help="the log, as `audit.path` names it")
    parser.add_argument("--last", metavar="HASH", help="hash that an earlier check printed")
    set_run(parser, run_audit)


def run_audit(options: argparse.Namespace) -> None:
    from fusionray.safety.audit_chain import check_chain

    chain = check_chain(Path(options.path), options.last)
    count = f"{chain.num_lines} lines in {len(chain.files)} file(s), each follows the one before it"
    begins = "" if chain.is_whole else "; earlier lines were rotated away"
    print(f"{options.path}: {count}{begins}; the hash of the last line is {chain.last_hash}")
