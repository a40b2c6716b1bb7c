"""What needs processes of its own: memory over the length of a film, two workers, and a run that is killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.video.context import VideoBenchContext
from fusionray.errors import ServiceFailed
from fusionray.evaluation.rendered_film import RenderedFilm
from fusionray.hardware.processes import measure_cpu
from fusionray.video.face_fusion.plan import FramePlan
from fusionray.video.face_fusion.work import FusionTask, FusionWorker
from fusionray.video.files.reader import VideoReader
from fusionray.video.segments import Segment, plan_segments

# Segments of the parts that split or kill: several of them in a film of ten seconds.
SHORT_SEGMENT = Fraction(2)
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Usage:
    """What a process used: seconds of cores, and its resident memory over time, MiB."""

    cores: float
    resident_mib: Sequence[float]


def run_command(
    context: VideoBenchContext, target: Path, output: Path, *, kill_after: float | None = None
) -> tuple[Usage, float]:
    """Run `fusionray fuse-video --faces all`, or kill it after some seconds; return also the seconds.

    Raises: ServiceFailed if it fails.
    """
    options = ["--bundle", str(context.bundle.folder), "--faces", "all", "--segment-seconds", str(float(SHORT_SEGMENT))]
    command = [sys.executable, "-m", "fusionray.cli", "fuse-video", str(context.source_picture), str(target)]
    log = output.with_suffix(".log")
    started = time.perf_counter()
    with log.open("ab") as errors:
        process = subprocess.Popen(  # noqa: S603 - the program itself
            [*command, str(output), *options], stdout=errors, stderr=errors
        )
        cores, resident_mib = 0.0, []
        while process.poll() is None:
            resident_mib.append(read_resident_mib(process.pid))
            cores = max(cores, measure_cpu([process.pid]))
            if kill_after is not None and time.perf_counter() - started > kill_after:
                process.kill()
                process.wait()
            time.sleep(POLL_SECONDS)
    if process.returncode != 0 and not (kill_after and process.returncode == -signal.SIGKILL):
        raise ServiceFailed(f"fuse-video ended with {process.returncode}; see {log}")
    return Usage(cores, resident_mib), time.perf_counter() - started


def read_resident_mib(pid: int) -> float:
    """Return the resident memory of a process, MiB; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
    return 0.0


def measure_memory(context: VideoBenchContext, tick: Callable[[], None]) -> Findings:
    """Fit a line to the memory of a long run, without its first two fifths, in which fusing begins; its rise counts.

    Within a segment memory rises and falls by a quarter with what the encoder looks ahead.
    """
    frames = context.config.long_repeats * context.config.frames
    film = context.film.write(context.output / "long.mp4", repeat=context.config.long_repeats)
    usage, seconds = run_command(context, film, context.output / "long-fused.mp4")
    tick()
    later = np.array(usage.resident_mib[len(usage.resident_mib) * 2 // 5 :])
    growth, _ = np.polyfit(np.linspace(0, 1, len(later)), later, 1)
    notes = [f"{frames} frames in {seconds:.0f} s: {max(usage.resident_mib):.0f} MiB at most"]
    return Findings({"memory_growth_mib": [float(growth)]}, notes=notes)


def measure_resume(context: VideoBenchContext, tick: Callable[[], None]) -> Findings:
    """Kill a run amid its work, and go on; what a start costs, whatever there is to do, is taken off all runs."""
    with TemporaryDirectory(dir=context.output) as folder:
        place = Path(folder)
        two_frames = RenderedFilm(context.config.width, context.config.height, 2).write(place / "short.mp4")
        start, start_seconds = run_command(context, two_frames, place / "start.mp4")
        whole, seconds = run_command(context, context.twice, place / "whole.mp4")
        tick()
        kill_after = start_seconds + 0.6 * (seconds - start_seconds)
        killed, _ = run_command(context, context.twice, place / "killed.mp4", kill_after=kill_after)
        rest, _ = run_command(context, context.twice, place / "killed.mp4")
        tick()
    work = [usage.cores - start.cores for usage in (whole, killed, rest)]
    return Findings({"resume_overhead_share": [(work[1] + work[2]) / work[0] - 1]})


def measure_segments(context: VideoBenchContext, tick: Callable[[], None]) -> Findings:
    """Compare two processes of a core each with one of a core; each works on segments of its own."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return Findings(missing={"segments_2_workers": "needs two cores"})
    segments = plan_segments(VideoReader(context.twice), SHORT_SEGMENT)
    task = context.task(context.twice)
    ratios = []
    for _ in range(context.config.rounds):
        alone = work_in_processes(task, [segments], cores[:1])
        both = work_in_processes(task, [segments[::2], segments[1::2]], cores[:2])
        ratios.append(alone / both)
        tick()
    sizes = [sum(segment.num_frames for segment in part) for part in (segments[::2], segments[1::2])]
    notes = [f"{len(segments)} segments; the two workers have {sizes[0]} and {sizes[1]} frames"]
    return Findings({"segments_2_workers": ratios}, notes=notes)


def work_in_processes(task: FusionTask, parts: Sequence[Sequence[Segment]], cores: Sequence[int]) -> float:
    """Work on each part in a process on a core of its own; return the seconds until the last one is done."""
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Barrier(len(parts) + 1)
    processes = [
        spawn.Process(target=work_on, args=(task, part, core, ready)) for part, core in zip(parts, cores, strict=True)
    ]
    for process in processes:
        process.start()
    ready.wait()
    started = time.perf_counter()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise ServiceFailed("a worker of the benchmark failed; see its error above")
    return time.perf_counter() - started


def work_on(task: FusionTask, segments: Sequence[Segment], core: int, ready: Any) -> None:
    """Find and fuse the faces of segments on one core; begin when all processes have loaded their models."""
    os.sched_setaffinity(0, {core})
    worker = FusionWorker(task)
    worker.fuser.warm_up()
    ready.wait()
    with TemporaryDirectory(prefix="fusionray-video-") as folder:
        for segment in segments:
            faces = worker.scan(segment, lambda _: None)
            plan = FramePlan.of(faces.tracks, dict.fromkeys(range(len(faces.tracks)), 0))
            worker.render(segment, plan, Path(folder) / f"{segment.number}.mp4", lambda _: None)
