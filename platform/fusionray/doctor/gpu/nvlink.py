"""Checks of NVLink, and of the fabric manager that NVSwitch needs.

Not measured on a GPU yet: the tests have recorded outputs. Source: `nvidia-smi nvlink --help`; NVIDIA's fabric manager
user guide (docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fusionray.doctor.container import is_container
from fusionray.doctor.finding import Finding
from fusionray.doctor.gpu.smi import read_gpus
from fusionray.doctor.host import Host

GPU_LINE = re.compile(r"^GPU (\d+): (.*?)(?: \(UUID.*)?$")
LINK_LINE = re.compile(r"^\s+Link (\d+): (?:([\d.]+) GB/s|<?inactive>?)", re.IGNORECASE)
ALL_INACTIVE = "all links are inactive"
# Newer GPUs print more counters. Those of corrected bits (FEC) grow on a sound link as well.
ERROR_LINE = re.compile(r"^\s+Link (\d+): ((?:Replay|Recovery|CRC)[^:]*): (\d+)")
# Links of one kind have one speed; the last digits that a driver prints may differ.
LEAST_SPEED = 0.98
# Linux cuts the names of processes, here nv-fabricmanager, to 15 characters.
FABRIC_MANAGER = "nv-fabricmanager"[:15]


@dataclass
class GpuLinks:
    """The links of a GPU: GB/s of the active ones, and the numbers of the others."""

    name: str
    speeds: dict[int, float] = field(default_factory=dict)
    inactive: list[int] = field(default_factory=list)
    has_nvlink: bool = False

    @property
    def gbytes_per_second(self) -> float:
        """The speed of all active links together."""
        return sum(self.speeds.values())

    def describe(self) -> str:
        """Return the number and the speed of the active links."""
        return f"{len(self.speeds)} active links, {self.gbytes_per_second:.0f} GB/s"


def check_nvlink(host: Host) -> Iterator[Finding]:
    """Compare the NVLinks of each GPU with those of its siblings, and read their error counters."""
    # A single GPU, of a cloud machine for example, has nobody to link to.
    answer = host.run(("nvidia-smi", "nvlink", "--status")) if host.num_gpus > 1 else None
    if answer is None:
        return
    links = parse_links(answer)
    if not any(gpu.has_nvlink for gpu in links.values()):
        return
    if not any(gpu.speeds for gpu in links.values()):
        remedy = (
            "right for PCIe cards without a bridge; else start the fabric manager, and look at `nvidia-smi topo -m`"
        )
        evidence = "no link is active: GPUs exchange over PCIe"
        yield Finding("NVLink", "note", evidence, remedy, "fix setting")
        return
    faults = list(judge_links(links))
    yield from faults
    if not faults:
        yield Finding("NVLink", "ok", f"each GPU has {' or '.join(sorted({gpu.describe() for gpu in links.values()}))}")
    yield from judge_counters(host.run(("nvidia-smi", "nvlink", "-e")) or "")


def parse_links(text: str) -> dict[int, GpuLinks]:
    """Parse what `nvidia-smi nvlink --status` prints, by the number of the GPU."""
    found: dict[int, GpuLinks] = {}
    for line in text.splitlines():
        header, link = GPU_LINE.match(line), LINK_LINE.match(line)
        if header:
            gpu = found[int(header[1])] = GpuLinks(header[2])
        elif found and link:
            gpu.has_nvlink = True
            if link[2]:
                gpu.speeds[int(link[1])] = float(link[2])
            else:
                gpu.inactive.append(int(link[1]))
        elif found and ALL_INACTIVE in line.lower():
            gpu.has_nvlink = True
    return found


def judge_links(links: Mapping[int, GpuLinks]) -> Iterator[Finding]:
    """Compare each GPU with the sibling of its model that has the fastest links; those of other models may differ."""
    for number, gpu in links.items():
        siblings = {other: each for other, each in links.items() if each.name == gpu.name}
        best = max(siblings, key=lambda each: siblings[each].gbytes_per_second)
        compared = f"{gpu.describe()}; GPU {best} has {siblings[best].describe()}"
        inactive = f", inactive: {', '.join(map(str, gpu.inactive))}" if gpu.inactive else ""
        evidence = f"GPU {number}: {compared}{inactive}"
        if len(gpu.speeds) < len(siblings[best].speeds):
            remedy = "reset the GPU; if the links stay inactive, check the bridge or have the board exchanged"
            yield Finding("NVLink", "error", evidence, remedy, "isolate node")
        elif gpu.gbytes_per_second < LEAST_SPEED * siblings[best].gbytes_per_second:
            yield Finding("NVLink", "warning", evidence, "reset the GPU, then compare again", "reset device")


def judge_counters(text: str) -> Iterator[Finding]:
    """Find links that had errors, in what `nvidia-smi nvlink -e` prints."""
    counted: dict[str, list[str]] = {}
    gpu = ""
    for line in text.splitlines():
        header, counter = GPU_LINE.match(line), ERROR_LINE.match(line)
        if header:
            gpu = f"GPU {header[1]}"
        elif counter and int(counter[3]):
            counted.setdefault(gpu, []).append(f"link {counter[1]}: {counter[3]} {counter[2]}")
    for gpu, errors in counted.items():
        remedy = "reset the GPU, which clears them, and look again after a run; look for XID 74 in the kernel log"
        yield Finding("NVLink errors", "warning", f"{gpu}: {'; '.join(errors)}", remedy, "reset device")


def check_fabric(host: Host) -> Iterator[Finding]:
    """Look whether the fabric of NVSwitches is up: without it CUDA does not start, or GPUs do not reach each other."""
    groups: dict[tuple[str, str], list[int]] = {}
    for number, gpu in enumerate(read_gpus(host)):
        if gpu.get("Fabric/State"):
            groups.setdefault((gpu.get("Fabric/State"), gpu.get("Fabric/Status")), []).append(number)
    for (state, status), numbers in groups.items():
        evidence = f"GPU {', '.join(map(str, numbers))}: fabric state {state}" + (
            f", status {status}" if status else ""
        )
        if state != "Completed":
            remedy = "restart it (`systemctl restart nvidia-fabricmanager`): its version must be that of the driver"
            yield Finding("fabric manager", "error", evidence, remedy, "restart process")
        elif status not in ("", "Success"):
            remedy = "look at /var/log/fabricmanager.log; reset the GPUs, then restart the fabric manager"
            yield Finding("fabric manager", "error", evidence, remedy, "reset device")
    has_switch = bool(host.list("/dev/nvidia-nvswitch[0-9]*") or host.list("/proc/driver/nvidia-nvswitch/devices/*"))
    # A container does not show the processes of its host.
    if not has_switch or is_container(host):
        return
    names = ((host.read(path) or "").strip() for path in host.list("/proc/[0-9]*/comm"))
    if FABRIC_MANAGER in names:
        yield Finding("fabric manager", "ok", "it runs")
    else:
        remedy = "install the version of the driver, and `systemctl enable --now nvidia-fabricmanager`"
        evidence = "this machine has NVSwitch, and the fabric manager does not run"
        yield Finding("fabric manager", "error", evidence, remedy, "restart process")
