"""What each kind of device is trained with: precision, memory format, compilation. Knows torch, not Ray.

The table is data (`hardware.yaml`). Asking changes nothing: the engine applies what a profile says.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.resources import files
from typing import Literal

import torch
import yaml
from pydantic import Field

from fusionray.config import Section

Family = Literal["nvidia", "amd-cdna", "amd-rdna", "cpu"]


class HardwareProfile(Section):
    """A row of the table: the settings that `auto` stands for on one kind of device."""

    name: str = Field(description="the architecture, as messages and docs call it")
    match: tuple[str, ...] = Field(description="CUDA capabilities, AMD architectures, or what a CPU must have")
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = Field(description="what engine.precision=auto means")
    tf32: bool = Field(description="tensor cores round float32 products to TF32: engine.precision=tf32 has an effect")
    channels_last: bool = Field(description="what engine.channels_last=auto means")
    compile: bool = Field(description="what engine.compile=auto means")
    decode_threads: int = Field(ge=1, description="threads that decode pictures fast enough for this device")
    source: str = Field(description="where the row comes from")
    note: str = Field("", description="why this row was taken for a device that the table does not name")


@lru_cache(maxsize=1)
def load_profiles() -> dict[Family, tuple[HardwareProfile, ...]]:
    """Read the table, per family from the oldest to the newest; CPUs from the most to the least able."""
    table = yaml.safe_load(files("fusionray.hardware").joinpath("profiles.yaml").read_text("utf-8"))
    return {family: tuple(HardwareProfile.model_validate(row) for row in rows) for family, rows in table.items()}


def detect_profile(device: torch.device) -> HardwareProfile:
    """Find the profile of a device of this process; `cuda` stands for NVIDIA's and AMD's GPUs, as in torch."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        if torch.version.hip:
            return match_amd(properties.gcnArchName)
        return match_nvidia(properties.major, properties.minor)
    found = torch.cpu.get_capabilities()
    # Sizes and names stand among the capabilities: only what is True is an instruction set.
    return match_cpu(os.uname().machine, [name for name, value in found.items() if value is True])


def match_nvidia(major: int, minor: int) -> HardwareProfile:
    """Find the row of a CUDA capability; one that no row names is taken for the nearest older one, and says so."""
    rows = load_profiles()["nvidia"]
    known = {parse_capability(entry): row for row in rows for entry in row.match}
    if (major, minor) in known:
        return known[major, minor]
    older = [capability for capability in known if capability < (major, minor)]
    taken = known[max(older)] if older else rows[0]
    return with_note(taken, f"capability {major}.{minor} is in no profile: taken for {taken.name}")


def parse_capability(entry: str) -> tuple[int, int]:
    major, minor = entry.split(".")
    return int(major), int(minor)


def match_amd(architecture: str) -> HardwareProfile:
    """Find the row of a `gcnArchName` (`gfx90a:sramecc+:xnack-`); an unknown one is its family's newest, and says so.

    The family is told by the length: three signs for data centres (gfx942), four for Radeon (gfx1100).
    """
    name = architecture.partition(":")[0]
    family: Family = "amd-cdna" if len(name) <= len("gfx942") else "amd-rdna"
    rows = load_profiles()[family]
    for row in rows:
        if any(fnmatchcase(name, pattern) for pattern in row.match):
            return row
    return with_note(rows[-1], f"{name} is in no profile: taken for {rows[-1].name}")


def match_cpu(machine: str, capabilities: Collection[str]) -> HardwareProfile:
    """Find the first row that a CPU meets: `machine` as uname has it, instruction sets as torch names them."""
    names = {"arm64": "aarch64", "amd64": "x86_64"}
    have = {names.get(machine.lower(), machine.lower()), *capabilities}
    rows = load_profiles()["cpu"]
    return next(row for row in rows if any(meets(have, needs) for needs in row.match))


def meets(have: Collection[str], needs: str) -> bool:
    return all(need in have for need in needs.split("+") if need)


def with_note(profile: HardwareProfile, note: str) -> HardwareProfile:
    return profile.model_copy(update={"note": note})


def describe_profile(profile: HardwareProfile, device: torch.device) -> str:
    """Say in one line what computes and how.

    To show what overrides made of a profile, pass `profile.model_copy(update={...})`.
    """
    parts = [
        f"{profile.precision} over tf32"
        if profile.tf32 and profile.precision in {"bf16", "fp16"}
        else profile.precision,
        "channels_last" if profile.channels_last else "contiguous",
        "compiled" if profile.compile else "eager",
    ]
    note = f" ({profile.note})" if profile.note else ""
    return f"{device_name(device)}, {memory_gib(device):.0f} GiB: profile {profile.name}, {', '.join(parts)}{note}"


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    found = torch.cpu.get_capabilities()
    return f"{found.get('cpu_name') or os.uname().machine} ({len(os.sched_getaffinity(0))} CPUs)"


def memory_gib(device: torch.device) -> float:
    """Return the memory of a GPU, or of the machine."""
    if device.type == "cuda":
        total: int = torch.cuda.get_device_properties(device).total_memory
    else:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total / 2**30


def tabulate(families: Sequence[Family] = ("nvidia", "amd-cdna", "amd-rdna", "cpu")) -> str:
    """Draw the table as Markdown, as docs/hardware.md shows it."""
    lines = ["| profile | devices | precision | TF32 | format | compile | decode threads | source |", "|" + "---|" * 8]
    for row in (row for family in families for row in load_profiles()[family]):
        devices = ", ".join(row.match).replace("*", "x") or "any"
        memory_format = "channels_last" if row.channels_last else "contiguous"
        cells = (row.name, devices, row.precision, yes(row.tf32), memory_format, yes(row.compile))
        lines.append(f"| {' | '.join((*cells, str(row.decode_threads), row.source))} |")
    return "\n".join(lines)


def yes(value: bool) -> str:
    return "yes" if value else "no"
