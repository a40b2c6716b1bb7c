"""Checks of NVIDIA GPUs: by nvidia-smi, and by the kernel log.

Not measured on a GPU yet: the tests have recorded outputs. Sources: `nvidia-smi --help-query-gpu`; NVIDIA's XID errors
(docs.nvidia.com/deploy/xid-errors), whose classes of action these are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fusionray.doctor.finding import Action, Finding, Severity
from fusionray.doctor.gpu.smi import group_vbios, read_gpus
from fusionray.doctor.host import Host

FIELDS = (
    "index",
    "name",
    "persistence_mode",
    "ecc.errors.uncorrected.volatile.total",
    "remapped_rows.pending",
    "remapped_rows.failure",
    "clocks_event_reasons.hw_slowdown",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "temperature.gpu",
)
QUERY = ("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
HOTTEST = 85
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+),\s*(.*)")
# Errors of the program that ran; all others are of the device or its link.
OF_PROGRAMS = {13, 31, 32, 43, 45, 68, 69}
ACTIONS: dict[int, tuple[Severity, Action]] = {
    48: ("error", "reset device"),
    63: ("note", "reset device"),
    64: ("error", "reset device"),
    74: ("error", "isolate node"),
    79: ("error", "reboot"),
    94: ("error", "restart process"),
    95: ("error", "reset device"),
    119: ("error", "reset device"),
    120: ("error", "reset device"),
}


def check_gpus(host: Host) -> Iterator[Finding]:
    """Look whether the GPUs answer, and what they say of themselves."""
    expected = host.options.gpus
    if not host.num_gpus and not expected:
        yield Finding("GPUs", "ok", "this machine has no NVIDIA GPU")
        return
    answer = host.run(QUERY)
    if answer is None and host.run(("nvidia-smi", "-L")) is not None:
        remedy = "update the driver (docs/installation.md), or look at `nvidia-smi -q` yourself"
        yield Finding("GPUs", "note", "this nvidia-smi knows other fields than are asked for", remedy, "fix setting")
        return
    if answer is None:
        remedy = "look at `nvidia-smi` and `dmesg`; in a container, start it with --gpus all"
        evidence = f"{host.num_gpus} device files, and nvidia-smi does not answer"
        yield Finding("GPUs", "error", evidence, remedy, "reboot" if host.num_gpus else "fix setting")
        return
    rows = [dict(zip(FIELDS, (cell.strip() for cell in line.split(",")), strict=False)) for line in answer.splitlines()]
    wanted = expected if expected is not None else host.num_gpus
    if len(rows) < wanted:
        remedy = "look in `dmesg` for the one that fell off the bus"
        yield Finding("GPUs", "error", f"{len(rows)} of {wanted} GPUs answer", remedy, "reboot")
    else:
        yield Finding("GPUs", "ok", f"{len(rows)} GPUs answer: {', '.join(sorted({row['name'] for row in rows}))}")
    for row in rows:
        yield from judge_gpu(row)


def judge_gpu(row: dict[str, str]) -> Iterator[Finding]:
    """Judge what a GPU says of itself; what it does not know is in brackets."""
    gpu = f"GPU {row['index']}"
    errors = row["ecc.errors.uncorrected.volatile.total"]
    if errors.isdigit() and int(errors):
        yield Finding("GPU memory", "error", f"{gpu}: {errors} uncorrected errors", "reset it", "reset device")
    if row["remapped_rows.failure"] == "Yes":
        remedy = "take the GPU out of use, and have it exchanged"
        yield Finding("GPU memory", "error", f"{gpu}: no spare rows are left", remedy, "isolate node")
    if row["remapped_rows.pending"] == "Yes":
        yield Finding("GPU memory", "warning", f"{gpu}: rows wait to be remapped", "reset it", "reset device")
    if row["clocks_event_reasons.hw_slowdown"] == "Active":
        remedy = "look at cooling and power"
        yield Finding("GPU clocks", "error", f"{gpu}: slowed down by its hardware", remedy, "isolate node")
    width, widest = row["pcie.link.width.current"], row["pcie.link.width.max"]
    if width != widest and width.isdigit() and widest.isdigit():
        remedy = "seat the card, or its riser, anew"
        yield Finding("PCIe", "warning", f"{gpu}: {width} of {widest} lanes", remedy, "isolate node")
    if row["temperature.gpu"].isdigit() and int(row["temperature.gpu"]) > HOTTEST:
        yield Finding("GPU heat", "warning", f"{gpu}: {row['temperature.gpu']} degrees", "look at the fans", "none")
    if row["persistence_mode"] == "Disabled":
        remedy = "run `nvidia-smi -pm 1`, or nvidia-persistenced: each first use loads the driver anew"
        yield Finding("persistence", "note", f"{gpu}: off", remedy, "fix setting")


def check_kernel_log(host: Host) -> Iterator[Finding]:
    """Look for the errors of GPUs in the kernel log."""
    if not host.num_gpus:
        return
    log = host.run(("dmesg",))
    if log is None:
        yield Finding("kernel log", "note", "it cannot be read here", "run `fusionray doctor` as root, too", "none")
        return
    seen: dict[tuple[str, int], str] = {}
    for found in XID.finditer(log):
        seen[found[1], int(found[2])] = found[3].strip()
    for (device, number), text in seen.items():
        if number in OF_PROGRAMS:
            remedy = "a program made it: look at the job that ran"
            yield Finding("XID", "note", f"{device}: XID {number}, {text}", remedy, "restart process")
            continue
        severity, action = ACTIONS.get(number, ("warning", "reset device"))
        yield Finding("XID", severity, f"{device}: XID {number}, {text}", f"{action}; then look again", action)


def check_vbios(host: Host) -> Iterator[Finding]:
    """Look whether GPUs of one model have one VBIOS."""
    for model, versions in group_vbios(read_gpus(host)):
        if len(versions) > 1:
            named = (f"{version} on GPU {', '.join(map(str, gpus))}" for version, gpus in versions.items())
            evidence = f"{model}: {'; '.join(named)}"
            remedy = "install one firmware package of the vendor on all: their clocks and links may differ"
            yield Finding("VBIOS", "warning", evidence, remedy, "fix setting")
