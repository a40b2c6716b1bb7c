"""The doctor on every node of a Ray cluster, and what differs between them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fusionray.doctor.finding import Finding
from fusionray.doctor.host import Host, HostOptions
from fusionray.doctor.packages import list_versions
from fusionray.doctor.suite import compare_versions, examine

# Clocks that differ by more make leases, expiry and logs of nodes contradict each other.
MOST_SKEW_SECONDS = 1.0
ANSWER_SECONDS = 300.0


@dataclass(frozen=True)
class NodeReport:
    """What a node found: its findings, versions, GPUs, and its clock when it began and when it ended."""

    findings: Sequence[Finding]
    versions: Mapping[str, str]
    num_gpus: int
    began: float
    ended: float


def examine_node(options: HostOptions) -> NodeReport:
    """Examine the node of the calling process. The Ray task."""
    began = time.time()
    host = Host(options)
    findings = examine(host)
    return NodeReport(findings, list_versions(), host.num_gpus, began, time.time())


def examine_cluster(options: HostOptions) -> list[Finding]:
    """Examine every live node of the connected cluster, and compare them with the first one."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    task = ray.remote(num_cpus=0, max_retries=0)(examine_node)
    asked = time.time()
    answers = {
        name: task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(options)
        for node, name in nodes.items()
    }
    findings: list[Finding] = []
    reports: dict[str, NodeReport] = {}
    for node, answer in answers.items():
        try:
            reports[node] = ray.get(answer, timeout=ANSWER_SECONDS)
        except (GetTimeoutError, RayError) as error:
            evidence = f"the node does not answer ({type(error).__name__})"
            findings.append(Finding("node", "error", evidence, "look at its raylet's log", "isolate node", node))
    answered = time.time()
    for node, report in reports.items():
        findings += [replace(finding, node=node) for finding in report.findings]
    return findings + compare_nodes(reports, asked, answered)


def compare_nodes(reports: Mapping[str, NodeReport], asked: float, answered: float) -> list[Finding]:
    """Compare versions and GPUs with the first node, and clocks with the times of this process around the answers."""
    findings: list[Finding] = []
    first = next(iter(reports), None)
    for node, report in reports.items():
        assert first is not None
        if node != first:
            findings += [
                replace(found, node=node)
                for found in compare_versions(report.versions, reports[first].versions, f"on {first}")
            ]
        if report.num_gpus != reports[first].num_gpus:
            evidence = f"{report.num_gpus} GPUs, {reports[first].num_gpus} on {first}"
            findings.append(Finding("GPUs", "note", evidence, "", "none", node))
        skew = max(asked - report.began, report.ended - answered)
        if skew > MOST_SKEW_SECONDS:
            evidence = f"its clock is off by {skew:.1f} s or more against this process"
            findings.append(Finding("clock", "error", evidence, "run chrony or ntpd on it", "fix setting", node))
    return findings
