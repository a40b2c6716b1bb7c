"""What `nvidia-smi -q` prints of each GPU, by section: the format that all drivers share.

A field that a driver does not know is absent there; `--query-gpu` would refuse the whole question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fusionray.doctor.host import Host

GPU_LINE = re.compile(r"^GPU ([0-9A-Fa-f]+:[0-9A-Fa-f:.]+)\s*$")
DRIVER_LINE = re.compile(r"^Driver Version\s*:\s*(\S+)", re.MULTILINE)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class GpuReport:
    """One GPU: its PCI address and its values, such as `Temperature/GPU Current Temp`: `45 C`."""

    address: str
    values: Mapping[str, str]

    @property
    def name(self) -> str:
        """The model, such as NVIDIA H100 80GB HBM3."""
        return self.values.get("Product Name", "")

    def get(self, *names: str) -> str:
        """Return the first of several fields that has a value; empty if none has: drivers rename them."""
        found = (self.values.get(name, "") for name in names)
        return next((value for value in found if value not in ("", "N/A")), "")

    def number(self, *names: str) -> float | None:
        """Return the number of the first field that has one, without its unit."""
        matches = (NUMBER.match(self.values.get(name, "")) for name in names)
        return next((float(match[0]) for match in matches if match), None)


def parse_gpus(text: str) -> list[GpuReport]:
    """Parse the output of `nvidia-smi -q`, of all sections or of some (`-d`)."""
    reports: list[GpuReport] = []
    for line in text.splitlines():
        found = GPU_LINE.match(line)
        if found:
            values: dict[str, str] = {}
            sections: list[tuple[int, str]] = []
            reports.append(GpuReport(found[1], values))
        elif reports and line.strip():
            indent = len(line) - len(line.lstrip())
            sections = [section for section in sections if section[0] < indent]
            name, colon, value = (part.strip() for part in line.partition(":"))
            if colon:
                values["/".join([*(title for _, title in sections), name])] = value
            else:
                sections.append((indent, name))
    return reports


def read_gpus(host: Host) -> list[GpuReport]:
    """Ask nvidia-smi for all that it knows of the GPUs; empty without GPUs or an answer, which another check tells."""
    return parse_gpus(host.gpu_query or "") if host.num_gpus else []


def read_firmware(host: Host) -> dict[str, str]:
    """Read the versions of the driver and of each model's VBIOS, which nodes must have in common."""
    versions = {f"VBIOS of {name}": ", ".join(sorted(found)) for name, found in group_vbios(read_gpus(host))}
    driver = DRIVER_LINE.search(host.gpu_query or "") if versions else None
    return {**({"NVIDIA driver": driver[1]} if driver else {}), **versions}


def group_vbios(reports: list[GpuReport]) -> Iterator[tuple[str, dict[str, list[int]]]]:
    """Yield each model, and which of its GPUs have which VBIOS."""
    models: dict[str, dict[str, list[int]]] = {}
    for number, report in enumerate(reports):
        version = report.get("VBIOS Version")
        if version:
            models.setdefault(report.name, {}).setdefault(version, []).append(number)
    yield from models.items()
