"""Clocks, heat and power of GPUs while they multiply matrices, all at once as in a training.

Not measured on a GPU yet: the tests have recorded outputs. Source: `nvidia-smi -q -d PERFORMANCE`; NVML's clock event
reasons (docs.nvidia.com/deploy/nvml-api).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from fusionray.doctor.finding import Finding
from fusionray.doctor.gpu.smi import GpuReport, parse_gpus
from fusionray.doctor.host import Host

QUERY = ("nvidia-smi", "-q", "-d", "PERFORMANCE,CLOCK,TEMPERATURE,POWER")
# Heat comes within some ten seconds of load.
LOAD_SECONDS, EVERY_SECONDS = 20.0, 1.0
LEAST_CLOCK = 0.8
SECTIONS = ("Clocks Event Reasons", "Clocks Throttle Reasons")  # newer and older drivers
POWER_CAP, SOFT_HEAT, IDLE = "SW Power Cap", "SW Thermal Slowdown", "Idle"
# What slows a GPU down in its hardware, and what to do. The first is the sum of the others, or a signal of the board.
HARDWARE = {
    "HW Slowdown": "look at cooling and power",
    "HW Thermal Slowdown": "look at fans, air flow and heat sink",
    "HW Power Brake Slowdown": "look at the power supplies: the board asks its GPUs to take less",
}


def watch_load(
    host: Host, load: Callable[[], object], every_seconds: float = EVERY_SECONDS
) -> list[Sequence[GpuReport]]:
    """Ask nvidia-smi once a second while `load` runs; return each answer, a report a GPU.

    An answer that begins before the load, or ends after it, does not count: the GPUs idle in a part of it.
    """
    samples: list[Sequence[GpuReport]] = []
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(every_seconds):
            answer = host.run(QUERY)
            if answer is None:
                return
            reports = parse_gpus(answer)
            if reports and not ended.is_set():
                samples.append(reports)

    thread = threading.Thread(target=sample, name="doctor-clocks", daemon=True)
    thread.start()
    try:
        load()
    finally:
        ended.set()
        thread.join()
    return samples


def examine_clocks(host: Host) -> list[Finding]:
    """Load all GPUs of this machine, and judge what they do meanwhile; nothing without GPUs."""
    import torch

    from fusionray.doctor.stress import load_gpus

    if not torch.cuda.is_available():
        return []
    started = time.perf_counter()
    samples = watch_load(host, lambda: load_gpus(LOAD_SECONDS))
    if not samples:
        evidence = f"nvidia-smi answered nothing in {time.perf_counter() - started:.0f} s of load"
        return [Finding("GPU clocks", "warning", evidence, "look at `nvidia-smi` while the GPUs work", "none")]
    return list(judge_clocks(samples))


def judge_clocks(samples: Sequence[Sequence[GpuReport]]) -> Iterator[Finding]:
    """Judge each GPU by all of its samples but those in which it idles: not every GPU may belong to this process."""
    for number, first in enumerate(samples[0]):
        own = [report for reports in samples for report in reports if report.address == first.address]
        if len(own) < len(samples):
            evidence = f"GPU {number}: in {len(own)} of {len(samples)} answers of nvidia-smi under load"
            yield Finding("GPUs", "error", evidence, "look in `dmesg` whether it fell off the bus", "reboot")
        busy = [report for report in own if not is_active(report, IDLE)]
        if busy:
            yield from judge_gpu_load(f"GPU {number}", busy)


def judge_gpu_load(gpu: str, samples: Sequence[GpuReport]) -> Iterator[Finding]:
    """Judge one GPU; an ok finding with its figures if nothing is wrong."""
    # What slows it down explains its low clock.
    faults = list(judge_reasons(gpu, samples)) or list(judge_speed(gpu, samples))
    faults += judge_heat(gpu, samples)
    yield from faults
    if not faults:
        yield Finding("GPU clocks", "ok", f"{gpu}: {describe(samples)}")


def is_active(report: GpuReport, reason: str) -> bool:
    """Tell whether a reason holds the clock of a GPU down."""
    return report.get(*(f"{section}/{reason}" for section in SECTIONS)) == "Active"


def judge_reasons(gpu: str, samples: Sequence[GpuReport]) -> Iterator[Finding]:
    """Find what slowed the GPU down."""
    counts = {reason: sum(is_active(report, reason) for report in samples) for reason in (*HARDWARE, SOFT_HEAT)}
    seen = {reason: count for reason, count in counts.items() if count}
    told = ", ".join(f"{reason} in {count} of {len(samples)} samples" for reason, count in seen.items())
    evidence = f"{gpu}: {told}; {describe(samples)}"
    hardware = [reason for reason in seen if reason in HARDWARE]
    if hardware:
        yield Finding("GPU clocks", "error", evidence, HARDWARE[hardware[-1]], "isolate node")
    elif seen:
        yield Finding("GPU clocks", "warning", evidence, HARDWARE["HW Thermal Slowdown"], "isolate node")


def judge_heat(gpu: str, samples: Sequence[GpuReport]) -> Iterator[Finding]:
    """Find temperatures past the limit of slowdown: an absolute one, or a margin that shrinks below another."""
    for report in samples:
        heat = report.number("Temperature/GPU Current Temp")
        limit = report.number("Temperature/GPU Slowdown Temp")
        margin = report.number("Temperature/GPU T.Limit Temp")
        least = report.number("Temperature/GPU Slowdown T.Limit Temp")
        if heat is not None and limit is not None and heat > limit:
            known = f"the limit of slowdown is {limit:.0f}"
        elif margin is not None and least is not None and margin < least:
            known = f"{margin:.0f} to its limit, slowdown at {least:.0f}"
        else:
            continue
        evidence = f"{gpu}: {heat or 0:.0f} degrees under load, {known}"
        yield Finding("GPU heat", "error", evidence, HARDWARE["HW Thermal Slowdown"], "isolate node")
        return


def judge_speed(gpu: str, samples: Sequence[GpuReport]) -> Iterator[Finding]:
    """Find clocks that fall. A power limit holds them in large products, which is right if nobody lowered it."""
    first = samples[0]
    wanted = first.number("Default Applications Clocks/Graphics", "Applications Clocks/Graphics", "Max Clocks/SM") or 0
    lowest = min(list_numbers(samples, "Clocks/SM"), default=wanted)
    capped = sum(is_active(report, POWER_CAP) for report in samples)
    slow = f"; under {LEAST_CLOCK:.0%} of {wanted:.0f} MHz" if lowest < LEAST_CLOCK * wanted else ""
    evidence = f"{gpu}: {describe(samples)}{slow}"
    limit = first.number("GPU Power Readings/Current Power Limit", "Power Readings/Power Limit")
    default = first.number("GPU Power Readings/Default Power Limit", "Power Readings/Default Power Limit")
    if capped and limit is not None and default is not None and limit < default:
        evidence += f"; at its power limit of {limit:.0f} W, {default:.0f} by default"
        yield Finding("GPU clocks", "warning", evidence, f"`nvidia-smi -pl {default:.0f}`", "fix setting")
    elif capped:
        evidence += f"; at its power limit in {capped} of them"
        remedy = "none, if the others of its kind do the same: large products take all the power"
        yield Finding("GPU clocks", "note", evidence, remedy, "none")
    elif slow:
        remedy = "remove limits of its clocks (`nvidia-smi -rgc`, `nvidia-smi -rac`), then look at cooling and power"
        yield Finding("GPU clocks", "warning", evidence, remedy, "fix setting")


def list_numbers(samples: Sequence[GpuReport], *names: str) -> list[float]:
    """List a number over time; samples without it are left out."""
    found = (report.number(*names) for report in samples)
    return [value for value in found if value is not None]


def describe(samples: Sequence[GpuReport]) -> str:
    """Return the ranges of clock, temperature and power."""
    power = (
        "GPU Power Readings/Instantaneous Power Draw",
        "GPU Power Readings/Power Draw",
        "Power Readings/Power Draw",
    )
    ranges = (
        ("MHz", list_numbers(samples, "Clocks/SM")),
        ("degrees", list_numbers(samples, "Temperature/GPU Current Temp")),
        ("W", list_numbers(samples, *power)),
    )
    told = [f"{min(values):.0f}-{max(values):.0f} {unit}" for unit, values in ranges if values]
    return f"{', '.join(told)} in {len(samples)} samples"
