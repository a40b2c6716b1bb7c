"""What verbs share that make a video: options of encoding and work, workers, progress, and the report."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from fusionray.commands.parser import Parser

if TYPE_CHECKING:
    from fusionray.safety.provenance import Provenance
    from fusionray.safety.signing import Signer
    from fusionray.video.files.encoders import EncoderSettings
    from fusionray.video.report import ReportParts
    from fusionray.video.run import MadeVideo
    from fusionray.video.stages import Advance
    from fusionray.video.work import SegmentWorker, VideoTask, VideoWork, Workers

# Of the newest finished segment, in the folder of the report while the rest is made.
PREVIEW = "preview.png"


def add_encoding_options(parser: Parser, title: str = "encoding") -> argparse._ArgumentGroup:
    """Add the options of a video's encoder, and of streams that are not copied; return their group."""
    encoding = parser.add_argument_group(title)
    encoding.add_argument("--encoder", default="libx264", help="FFmpeg's name of the encoder (libx264)")
    encoding.add_argument("--quality", type=float, metavar="CRF", help="crf or cq of the encoder: lower is better")
    encoding.add_argument("--preset", help="preset of the encoder, such as fast")
    encoding.add_argument(
        "--encoder-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="another setting of the encoder; repeat it for more",
    )
    encoding.add_argument(
        "--leave-out",
        choices=("audio", "subtitle", "data", "attachment", "video"),
        action="append",
        default=[],
        help="kind of streams not to copy, such as subtitles that the container cannot hold; video: cover pictures",
    )
    return encoding


def add_work_options(parser: Parser, title: str = "work") -> None:
    """Add the options of segments and workers."""
    workers = parser.add_argument_group(title)
    workers.add_argument("--report", metavar="DIR", help="folder for report.html and figures.json (OUTPUT-report)")
    workers.add_argument(
        "--segment-seconds",
        type=float,
        metavar="S",
        default=10,
        help="shortest part of the video that is worked on, and lost, as a whole (10)",
    )
    workers.add_argument(
        "--workers", type=int, metavar="N", default=0, help="workers on a Ray cluster; 0: this process alone (0)"
    )
    workers.add_argument("--cpus-per-worker", type=float, metavar="N", default=1, help="CPUs of each worker (1)")
    workers.add_argument("--gpus-per-worker", type=float, metavar="N", default=0, help="GPUs, or a share of one (0)")
    workers.add_argument("--address", help="use this Ray cluster; default: start Ray on this machine")


def check_video_options(target: Path, output: Path, options: argparse.Namespace) -> None:
    """Refuse names and settings with which no video can be made.

    Raises: ValueError.
    """
    from fusionray.video.run import MEDIA_TYPES

    if output.suffix.lower() not in MEDIA_TYPES:
        raise ValueError(f"{output}: the name of the result must end in .mp4 or .mov, which can be signed")
    if output.resolve() == target.resolve():
        raise ValueError(f"{output}: would replace the video that it is made of; give the result another name")
    if options.segment_seconds <= 0:
        raise ValueError(f"--segment-seconds {options.segment_seconds:g}: must be greater than 0")


def read_encoder(options: argparse.Namespace) -> EncoderSettings:
    """Read how the video is encoded.

    Raises: ValueError.
    """
    from fusionray.video.files.encoders import EncoderSettings

    for pair in options.encoder_option:
        if "=" not in pair:
            raise ValueError(f"--encoder-option {pair}: write KEY=VALUE, such as tune=film")
    pairs = dict(pair.split("=", 1) for pair in options.encoder_option)
    return EncoderSettings(options.encoder, options.quality, options.preset, pairs)


def make_video(
    work: VideoWork,
    worker: SegmentWorker,
    output: Path,
    describe: Callable[[MadeVideo], ReportParts],
    options: argparse.Namespace,
    *,
    signer: Signer,
    provenance: Provenance,
) -> MadeVideo:
    """Make a video and its report, in this process by `worker`, or on a cluster as the options say; shows progress.

    Raises: as `VideoRun.make`; ClusterUnavailable.
    """
    from fusionray.video.report import write_report
    from fusionray.video.run import VideoRun

    report = Path(options.report) if options.report else output.with_name(f"{output.stem}-report")

    def complete(made: MadeVideo) -> None:
        (report / PREVIEW).unlink(missing_ok=True)
        write_report(report, made, describe(made), work.task.target, output, signer=signer, provenance=provenance)

    seconds = Fraction(options.segment_seconds).limit_denominator(1000)
    run = VideoRun(work, output, signer, provenance, seconds, report / PREVIEW, complete)
    for folder in (output.parent, report.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with open_workers(work.task, worker, options) as workers:
        return run.make(workers, show_progress)


@contextlib.contextmanager
def open_workers(task: VideoTask, worker: SegmentWorker, options: argparse.Namespace) -> Iterator[Workers]:
    """Provide this process as a worker, or those of a cluster.

    Raises: ClusterUnavailable.
    """
    from fusionray.video.work import LocalWorkers

    if not options.workers:
        yield LocalWorkers(worker)
        return
    from fusionray.ray_cluster.connection import cluster
    from fusionray.video.distributed import ClusterWorkers

    with cluster(options.address):
        yield ClusterWorkers(task, number=options.workers, cpus=options.cpus_per_worker, gpus=options.gpus_per_worker)


@contextlib.contextmanager
def show_progress(stage: str, total: int, done: int) -> Iterator[Advance]:
    """Show a bar with frames/s and the time that is left."""
    from tqdm import tqdm

    with tqdm(desc=stage, total=total, initial=done, unit=" frames", file=sys.stderr) as bar:
        yield bar.update


def tell_frames(made: MadeVideo) -> str:
    """Say how many frames were made, and by whom."""
    return f"{made.num_frames} frames{f', {made.num_resumed} of them by an earlier run' if made.num_resumed else ''}"


def tell_faults(made: MadeVideo) -> str:
    """Say how many faults the target has, if any."""
    return f"; {made.num_damaged} faults in the target" if made.num_damaged else ""
