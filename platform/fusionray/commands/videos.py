"""The verb for video files: fuse-video."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusionray.commands.parser import Verbs, add_verb, set_run
from fusionray.commands.pictures import read_picture

if TYPE_CHECKING:
    from fusionray.runtime.fuser import Fuser
    from fusionray.video.files.encoders import EncoderSettings
    from fusionray.video.run import FusedVideo
    from fusionray.video.stages import Advance
    from fusionray.video.tracks import Track
    from fusionray.video.work import VideoTask, Workers


# Of the newest finished segment, in the folder of the report while the rest is made.
PREVIEW = "preview.png"


def add_fuse_video(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "fuse-video",
        "Put the face of a picture into a video.",
        arguments="SOURCE TARGET OUTPUT --bundle BUNDLE [options]",
        details="Times of frames, sound, subtitles, chapters, rotation and colours stay as they are.\n"
        "A repeated command goes on where an interrupted one was.",
        examples=[
            ("fusionray fuse-video a.jpg talk.mp4 fused.mp4 --bundle runs/mine/bundle", "whoever is seen most"),
            (
                "fusionray fuse-video a.jpg talk.mp4 fused.mp4 --who b.jpg --bundle runs/mine/bundle",
                "the person of b.jpg gets the face of a.jpg",
            ),
            (
                "fusionray fuse-video a.jpg talk.mp4 fused.mp4 --who b.jpg --identity c.jpg --who d.jpg "
                "--bundle runs/mine/bundle",
                "and the person of d.jpg that of c.jpg",
            ),
        ],
    )
    parser.add_argument("source", metavar="SOURCE", help="picture of the identity")
    parser.add_argument("target", metavar="TARGET", help="video to change")
    parser.add_argument("output", metavar="OUTPUT", help="result: an .mp4 or .mov file")
    parser.add_argument("--report", metavar="DIR", help="folder for report.html and figures.json (OUTPUT-report)")
    model = parser.add_argument_group("model")
    model.add_argument("--bundle", required=True, help="bundle folder, or models:/name@alias")
    model.add_argument("--tracking-uri", metavar="URI", help="MLflow store behind models:/ locations")
    faces = parser.add_argument_group("faces")
    faces.add_argument(
        "--faces",
        choices=("main", "all"),
        default="main",
        help="faces to change: those of the person in most frames (main), or all",
    )
    faces.add_argument(
        "--who",
        metavar="FILE",
        action="append",
        default=[],
        help="picture of a person: change the faces of whoever is most similar; once for each identity",
    )
    faces.add_argument(
        "--identity",
        metavar="FILE",
        action="append",
        default=[],
        help="picture of one more identity, for one more --who",
    )
    faces.add_argument(
        "--who-similarity", type=float, metavar="COSINE", default=0.3, help="least similarity with it, -1 to 1 (0.3)"
    )
    encoding = parser.add_argument_group("encoding")
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
        "--copy-unchanged",
        action="store_true",
        help="copy parts without a face to fuse from the source, not encoded anew; some players want one encoder",
    )
    encoding.add_argument(
        "--leave-out",
        choices=("audio", "subtitle", "data", "attachment", "video"),
        action="append",
        default=[],
        help="kind of streams not to copy, such as subtitles that the container cannot hold; video: cover pictures",
    )
    output = parser.add_argument_group("provenance")
    output.add_argument(
        "--mark", action="store_true", help="draw a small plate that says AI into a corner of each frame"
    )
    output.add_argument(
        "--certificate", metavar="PEM", help="sign with this certificate and its chain; default: a test key"
    )
    output.add_argument("--key", metavar="PEM", help="private key of the certificate")
    workers = parser.add_argument_group("work")
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
    set_run(parser, run_fuse_video)


def run_fuse_video(options: argparse.Namespace) -> None:
    from fusionray.bundle.bundle import bundle_hash, read_bundle
    from fusionray.bundle.description import FACE_FUSION
    from fusionray.config import validate
    from fusionray.safety.mark import MarkConfig
    from fusionray.safety.provenance import Provenance
    from fusionray.safety.signing import build_signer
    from fusionray.safety.signing_keys import SigningConfig
    from fusionray.video.report import write_report
    from fusionray.video.run import MEDIA_TYPES, VideoRun
    from fusionray.video.work import VideoTask, open_fuser

    target, output = Path(options.target), Path(options.output)
    if output.suffix.lower() not in MEDIA_TYPES:
        raise ValueError(f"{output}: the name of the result must end in .mp4 or .mov, which can be signed")
    if output.resolve() == target.resolve():
        raise ValueError(f"{output}: would replace the video that it is made of; give the result another name")
    pictures = [options.source, *options.identity]
    if len(pictures) > 1 and len(options.who) != len(pictures):
        raise ValueError(
            f"{len(pictures)} identities need {len(pictures)} --who pictures, {len(options.who)} were given"
        )
    if options.segment_seconds <= 0:
        raise ValueError(f"--segment-seconds {options.segment_seconds:g}: must be greater than 0")
    if len(options.who) > len(pictures):
        raise ValueError(f"--who was given {len(options.who)} times; each further one needs an --identity")
    encoder = read_encoder(options)
    images = [read_picture(picture) for picture in pictures]
    signing = {"certificate": options.certificate, "key": options.key}
    settings = validate(SigningConfig, signing, "--certificate, --key")
    bundle = read_bundle(options.bundle, options.tracking_uri)
    bundle.require_task(FACE_FUSION)
    signer = build_signer(settings)
    fuser = open_fuser(bundle)
    by_person = options.faces != "all" or bool(options.who)
    if by_person and not fuser.preprocessor.compares_faces:
        raise ValueError(f"{bundle.description.name} takes pictures as sources and compares no faces; use --faces all")
    task = VideoTask(
        target,
        output.suffix,
        options.bundle,
        options.tracking_uri,
        [fuser.encode_source(image) for image in images],
        by_person,
        encoder,
        MarkConfig(enabled=options.mark),
        options.copy_unchanged,
        leave_out=tuple(options.leave_out),
    )
    references = [read_picture(picture) for picture in options.who]
    who = [hashlib.sha256(picture.tobytes()).hexdigest() for picture in references]
    report = Path(options.report) if options.report else output.with_name(f"{output.stem}-report")
    provenance = Provenance(bundle.description.name, bundle_hash(bundle))

    def complete(made: FusedVideo) -> None:
        (report / PREVIEW).unlink(missing_ok=True)
        write_report(report, made, target, output, signer=signer, provenance=provenance)

    run = VideoRun(
        task,
        output,
        lambda tracks: choose_sources_of(tracks, references, fuser, options),
        {"faces": options.faces, "who": who, "who_similarity": options.who_similarity},
        signer,
        provenance,
        Fraction(options.segment_seconds).limit_denominator(1000),
        report / PREVIEW,
        complete,
    )
    for folder in (output.parent, report.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with open_workers(task, fuser, options) as workers:
        made = run.make(workers, show_progress)
    tell(made, output, bundle.description.name)


def tell(made: FusedVideo, output: Path, model: str) -> None:
    """Say in a line what was made."""
    resumed = f", {made.num_resumed} of them by an earlier run" if made.num_resumed else ""
    damaged = f"; {made.num_damaged} faults in the target" if made.num_damaged else ""
    print(
        f"{output}: {made.plan.num_faces} faces in {len(made.plan.faces)} of {made.num_frames} frames{resumed} fused "
        f"with {model}{damaged}; signed as AI-made"
    )


@contextlib.contextmanager
def open_workers(task: VideoTask, fuser: Fuser, options: argparse.Namespace) -> Iterator[Workers]:
    """Provide this process as a worker, or those of a cluster.

    Raises: ClusterUnavailable.
    """
    from fusionray.video.work import LocalWorkers, SegmentWorker

    if not options.workers:
        yield LocalWorkers(SegmentWorker(task, fuser))
        return
    from fusionray.ray_cluster.connection import cluster
    from fusionray.video.distributed import ClusterWorkers

    with cluster(options.address):
        yield ClusterWorkers(task, number=options.workers, cpus=options.cpus_per_worker, gpus=options.gpus_per_worker)


def choose_sources_of(
    tracks: Sequence[Track], references: Sequence[Any], fuser: Fuser, options: argparse.Namespace
) -> dict[int, int]:
    """Choose whose faces are changed: the number of the source by that of the track.

    Raises: ImageRejected.
    """
    from fusionray.runtime.face_preprocessor import find_largest_face
    from fusionray.video.choosing import choose_all, choose_main, choose_similar

    if not references:
        return choose_all(tracks) if options.faces == "all" else choose_main(tracks)
    detector = fuser.preprocessor.detector
    identities = [
        fuser.preprocessor.embed_face(picture, find_largest_face(detector, picture, "reference"))
        for picture in references
    ]
    return choose_similar(tracks, identities, options.who_similarity, options.who)


@contextlib.contextmanager
def show_progress(stage: str, total: int, done: int) -> Iterator[Advance]:
    """Show a bar with frames/s and the time that is left."""
    from tqdm import tqdm

    with tqdm(desc=stage, total=total, initial=done, unit=" frames", file=sys.stderr) as bar:
        yield bar.update


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
