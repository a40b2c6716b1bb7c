"""Settings for training on each kind of device: precision, memory format, compilation. Uses torch, not Ray.

The table is data (`profiles.yaml`). A lookup changes no setting of torch: the engine applies the profile.
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
    """A row of the table: the meaning of `auto` on one kind of device."""

    name: str = Field(description="the architecture, as messages and docs call it")
    match: tuple[str, ...] = Field(description="CUDA capabilities, AMD architectures, or requirements of a CPU")
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = Field(description="meaning of engine.precision=auto")
    tf32: bool = Field(description="tensor cores round float32 products to TF32: engine.precision=tf32 has an effect")
    channels_last: bool = Field(description="meaning of engine.channels_last=auto")
    compile: bool = Field(description="meaning of engine.compile=auto where passes are no CUDA graphs")
    decode_threads: int = Field(ge=1, description="threads that decode pictures fast enough for this device")
    source: str = Field(description="source of the row")
    note: str = Field("", description="why a device that the table does not name gets this row")


@lru_cache(maxsize=1)
def load_profiles() -> dict[Family, tuple[HardwareProfile, ...]]:
    """Read the table: GPU families from the oldest row to the newest, CPUs from the most capable to the least."""
    table = yaml.safe_load(files("fusionray.hardware").joinpath("profiles.yaml").read_text("utf-8"))
    return {family: tuple(HardwareProfile.model_validate(row) for row in rows) for family, rows in table.items()}


def detect_profile(device: torch.device) -> HardwareProfile:
    """Find the profile of a device of this process; `cuda` means NVIDIA and AMD GPUs, as in torch."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        if torch.version.hip:
            return match_amd(properties.gcnArchName)
        return match_nvidia(properties.major, properties.minor)
    found = torch.cpu.get_capabilities()
    # The capabilities also contain sizes and names; only an entry that is True is an instruction set.
    return match_cpu(os.uname().machine, [name for name, value in found.items() if value is True])


def match_nvidia(major: int, minor: int) -> HardwareProfile:
    """Find the row of a CUDA capability; an unknown one gets the nearest older row and a note."""
    rows = load_profiles()["nvidia"]
    known = {parse_capability(entry): row for row in rows for entry in row.match}
    if (major, minor) in known:
        return known[major, minor]
    older = [capability for capability in known if capability < (major, minor)]
    taken = known[max(older)] if older else rows[0]
    return with_note(taken, f"capability {major}.{minor} has no profile: using {taken.name}")


def parse_capability(entry: str) -> tuple[int, int]:
    major, minor = entry.split(".")
    return int(major), int(minor)


def match_amd(architecture: str) -> HardwareProfile:
    """Find the row of a `gcnArchName` (`gfx90a:sramecc+:xnack-`); an unknown one gets its family's newest and a note.

    The length tells the family: three characters after `gfx` for data centres (gfx942), four for Radeon (gfx1100).
    """
    name = architecture.partition(":")[0]
    family: Family = "amd-cdna" if len(name) <= len("gfx942") else "amd-rdna"
    rows = load_profiles()[family]
    for row in rows:
        if any(fnmatchcase(name, pattern) for pattern in row.match):
            return row
    return with_note(rows[-1], f"{name} has no profile: using {rows[-1].name}")


def match_cpu(machine: str, capabilities: Collection[str]) -> HardwareProfile:
    """Find the first row whose requirements a CPU meets: `machine` as in uname, instruction sets as in torch."""
    names = {"arm64": "aarch64", "amd64": "x86_64"}
    have = {names.get(machine.lower(), machine.lower()), *capabilities}
    rows = load_profiles()["cpu"]
    return next(row for row in rows if any(meets(have, needs) for needs in row.match))


def meets(have: Collection[str], needs: str) -> bool:
    return all(need in have for need in needs.split("+") if need)


def with_note(profile: HardwareProfile, note: str) -> HardwareProfile:
    return profile.model_copy(update={"note": note})


def describe_profile(profile: HardwareProfile, device: torch.device) -> str:
    """Describe a device and its settings in one line.

    To show settings that override the profile, pass `profile.model_copy(update={...})`.
    """
    parts = [
        f"{profile.precision} over tf32"
        if profile.tf32 and profile.precision in {"bf16", "fp16"}
        else profile.precision,
        "channels_last" if profile.channels_last else "contiguous",
        "compiled" if profile.compile else "eager",
    ]
    notes = [profile.note] if profile.note else []
    if is_emulated(profile):
        notes.append(
            f"this CPU emulates {profile.precision}, many times slower than float32: set engine.precision=auto"
        )
    note = f" ({'; '.join(notes)})" if notes else ""
    return f"{device_name(device)}, {memory_gib(device):.0f} GiB: profile {profile.name}, {', '.join(parts)}{note}"


def is_emulated(profile: HardwareProfile) -> bool:
    """Tell whether settings that override a CPU's profile want products that it has no instructions for."""
    own = next((row for row in load_profiles()["cpu"] if row.name == profile.name), None)
    return own is not None and own.precision == "fp32" and profile.precision in {"bf16", "fp16"}


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
    """Write the table as Markdown, as in docs/hardware.md."""
    lines = ["| profile | devices | precision | TF32 | format | compile | decode threads | source |", "|" + "---|" * 8]
    for row in (row for family in families for row in load_profiles()[family]):
        devices = ", ".join(row.match).replace("*", "x") or "any"
        memory_format = "channels_last" if row.channels_last else "contiguous"
        cells = (row.name, devices, row.precision, yes(row.tf32), memory_format, yes(row.compile))
        lines.append(f"| {' | '.join((*cells, str(row.decode_threads), row.source))} |")
    return "\n".join(lines)


def yes(value: bool) -> str:
    return "yes" if value else "no"
