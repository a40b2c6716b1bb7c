"""The verb that examines a machine or a cluster: doctor."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fusionray.commands.parser import Verbs, add_verb, set_run

if TYPE_CHECKING:
    from fusionray.doctor.finding import Finding


def add_doctor(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "doctor",
        "Look what is wrong with a machine or a cluster.",
        arguments="[options]",
        details="Each finding has its evidence and a remedy; --cluster examines every node.\n"
        "The exit status is 1 if one is an error, with --strict also for a warning.",
        examples=[
            ("fusionray doctor", "this machine, in seconds"),
            ("fusionray doctor --storage s3://bucket/runs --script train.py --gpus 8", "and what a job will use"),
            ("fusionray doctor --cluster --address auto --json", "every node, and what differs between them"),
            ("fusionray doctor --cluster --intensive", "and which node is slow, or has a slow link"),
        ],
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs that each machine must have; default: those there")
    parser.add_argument(
        "--storage", metavar="URI", action="append", default=[], help="storage to write to and read; repeat it for more"
    )
    parser.add_argument(
        "--script", metavar="FILE", action="append", default=[], help="training script to read; repeat it for more"
    )
    parser.add_argument(
        "--golden", metavar="FILE", help="versions that must be installed, as --write-golden wrote them"
    )
    parser.add_argument("--write-golden", metavar="FILE", help="write the versions of this machine, and exit")
    parser.add_argument("--cluster", action="store_true", help="examine every node of the Ray cluster at --address")
    parser.add_argument("--address", help="the cluster; default: the one that RAY_ADDRESS or a Ray job names")
    parser.add_argument(
        "--intensive",
        action="store_true",
        help="also measure matrix products, copies to GPUs, their clocks and heat under load, an all-reduce and, on a "
        "cluster, exchanges of every pair of nodes: minutes in which nothing else should run",
    )
    parser.add_argument("--dry-run", action="store_true", help="list the checks, with --intensive those too, and exit")
    parser.add_argument("--strict", action="store_true", help="let warnings fail, too")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON instead of the table")
    set_run(parser, run_doctor)


def run_doctor(options: argparse.Namespace) -> None:
    from fusionray.doctor.finding import SEVERITIES, find_worst
    from fusionray.doctor.intensive import MEASUREMENTS
    from fusionray.doctor.packages import list_versions
    from fusionray.doctor.suite import CHECKS, describe_check, name_check
    from fusionray.doctor.table import write_table

    if options.dry_run:
        checks = {name_check(check): describe_check(check) for check in CHECKS}
        if options.intensive:
            checks |= MEASUREMENTS
        print("\n".join(f"{name:18} {what}" for name, what in checks.items()))
        return
    if options.write_golden:
        Path(options.write_golden).write_text(json.dumps(list_versions(), indent=1) + "\n", encoding="utf-8")
        print(f"{options.write_golden}: the versions of this machine; compare others with --golden")
        return
    findings = find(options)
    if options.json:
        print(json.dumps({"findings": [finding.describe() for finding in findings]}, indent=1))
    else:
        print(write_table(findings))
    least = "warning" if options.strict else "error"
    if SEVERITIES.index(find_worst(findings)) >= SEVERITIES.index(least):
        sys.stdout.flush()
        raise SystemExit(1)


def show(line: str) -> None:
    """Say what is being done, where the findings do not go."""
    print(f"doctor: {line}", file=sys.stderr)


def find(options: argparse.Namespace) -> list[Finding]:
    """Examine what the options name.

    Raises: InputMissing for a golden file that cannot be read; ClusterUnavailable.
    """
    from fusionray.doctor.host import Host, HostOptions
    from fusionray.doctor.packages import list_versions
    from fusionray.doctor.suite import compare_versions, examine
    from fusionray.errors import ClusterUnavailable, InputMissing

    asked = HostOptions(options.gpus, tuple(options.storage), tuple(options.script))
    if options.cluster:
        from fusionray.doctor.cluster import examine_cluster
        from fusionray.environment import cluster_address
        from fusionray.ray_cluster.connection import cluster, require_cluster

        if cluster_address(options.address) is None:
            raise ClusterUnavailable("--cluster: no cluster is named; give --address, or set RAY_ADDRESS")
        with cluster(options.address):
            require_cluster()
            findings = examine_cluster(asked)
            if options.intensive:
                from fusionray.doctor.intensive_cluster import stress_cluster

                findings += stress_cluster(show)
            return findings
    host = Host(asked)
    findings = examine(host)
    if options.intensive:
        from fusionray.doctor.intensive import stress_machine

        findings += stress_machine(host, show)
    if options.golden:
        try:
            golden = json.loads(Path(options.golden).read_text(encoding="utf-8"))
            findings += compare_versions(list_versions(), golden, f"in {options.golden}")
        except (OSError, ValueError, AttributeError, TypeError) as error:
            reason = getattr(error, "strerror", None) or "it is no file of --write-golden"
            raise InputMissing(f"{options.golden}: cannot be read ({reason}); write it with --write-golden") from None
    return findings
