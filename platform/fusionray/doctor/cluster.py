"""The doctor on every node of a Ray cluster, and what differs between them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fusionray.doctor.finding import Finding
from fusionray.doctor.gpu.smi import read_firmware
from fusionray.doctor.head import ASKED, judge_gcs_storage, judge_master
from fusionray.doctor.host import Host, HostOptions
from fusionray.doctor.packages import list_versions
from fusionray.doctor.suite import compare_versions, examine

# Clocks that differ by more make leases, expiry and logs of nodes contradict each other.
MOST_SKEW_SECONDS = 1.0
ANSWER_SECONDS = 300.0
# The resource that Ray gives to the head alone.
HEAD_RESOURCE = "node:__internal_head__"
# A task that does nothing takes milliseconds; a raylet that takes longer lags behind its work.
MOST_LAG_SECONDS, LAG_TASKS, LAG_TIMEOUT_SECONDS = 1.0, 3, 30.0


@dataclass(frozen=True)
class NodeReport:
    """What a node found: its findings, versions, GPUs, and its clock when it began and when it ended.

    `firmware`: versions of its driver and its GPUs; `variables`: those that concern the head; `is_master`: its
    MASTER_ADDR is itself.
    """

    findings: Sequence[Finding]
    versions: Mapping[str, str]
    num_gpus: int
    began: float
    ended: float
    firmware: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    is_master: bool = False


def examine_node(options: HostOptions) -> NodeReport:
    """Examine the node of the calling process. The Ray task."""
    began = time.time()
    host = Host(options)
    findings = examine(host)
    variables = {name: host.environment[name] for name in ASKED if name in host.environment}
    is_master = "MASTER_ADDR" in variables and host.is_here(variables["MASTER_ADDR"])
    firmware = read_firmware(host)
    ended = time.time()
    return NodeReport(findings, list_versions(), host.num_gpus, began, ended, firmware, variables, is_master)


def examine_cluster(options: HostOptions) -> list[Finding]:
    """Examine every live node of the connected cluster, and compare them with the first one."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    alive = [node for node in ray.nodes() if node["Alive"]]
    head = next((node["NodeManagerAddress"] for node in alive if HEAD_RESOURCE in node["Resources"]), None)
    task = ray.remote(num_cpus=0, max_retries=0)(examine_node)
    asked = time.time()
    answers = {node["NodeManagerAddress"]: place(task, node["NodeID"]).remote(options) for node in alive}
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
    findings += compare_nodes(reports, asked, answered)
    findings += judge_lags({node["NodeManagerAddress"]: time_task(node["NodeID"]) for node in alive})
    return findings + (compare_with_head(head, reports) if head in reports else [])


def place(task: Any, node_id: str) -> Any:
    """Return a Ray task that runs on a node, and on no other."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False))


def do_nothing() -> None:
    """Do nothing. The Ray task that is timed."""


def time_task(node_id: str) -> float:
    """Return the seconds of a task that does nothing: the best of three, as the first may start a process."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    task = place(ray.remote(num_cpus=0, max_retries=0)(do_nothing), node_id)
    best = LAG_TIMEOUT_SECONDS
    for _ in range(LAG_TASKS):
        started = time.perf_counter()
        try:
            ray.get(task.remote(), timeout=LAG_TIMEOUT_SECONDS)
        except (GetTimeoutError, RayError):
            break
        best = min(best, time.perf_counter() - started)
    return best


def judge_lags(seconds: Mapping[str, float]) -> list[Finding]:
    """Judge how long each node takes for a task that does nothing."""
    findings = []
    for node, lag in seconds.items():
        evidence = f"a task that does nothing takes {lag:.3f} s"
        if lag > MOST_LAG_SECONDS:
            remedy = "look what fills its CPUs, its memory and its disk, and at raylet.out: workers start late there"
            findings.append(Finding("raylet", "warning", evidence, remedy, "restart process", node))
        else:
            findings.append(Finding("raylet", "ok", evidence, node=node))
    return findings


def compare_with_head(head: str, reports: Mapping[str, NodeReport]) -> list[Finding]:
    """Judge what concerns the head: its state, and the address of rank 0."""
    gpus = {node: report.num_gpus for node, report in reports.items()}
    masters = {node: report.variables["MASTER_ADDR"] for node, report in reports.items() if report.is_master}
    return [
        *judge_gcs_storage(head, reports[head].variables, len(reports)),
        *judge_master(head, gpus, masters),
    ]


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
        differing = [
            f"{name} {version} here, {reports[first].firmware[name]} on {first}"
            for name, version in report.firmware.items()
            if reports[first].firmware.get(name, version) != version
        ]
        if differing:
            remedy = "install one driver, and one firmware package of the vendor, on all nodes"
            findings.append(Finding("firmware", "warning", "; ".join(differing), remedy, "fix setting", node))
        skew = max(asked - report.began, report.ended - answered)
        if skew > MOST_SKEW_SECONDS:
            evidence = f"its clock is off by {skew:.1f} s or more against this process"
            findings.append(Finding("clock", "error", evidence, "run chrony or ntpd on it", "fix setting", node))
    return findings
