"""The verb for video files: fuse-video."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusionray.commands.parser import Verbs, add_verb, set_run
from fusionray.commands.pictures import read_picture
from fusionray.config import validate

if TYPE_CHECKING:
    from fusionray.runtime.fuser import Fuser
    from fusionray.video.tracks import Track

# The containers that can be signed.
MEDIA_TYPES = {".mp4": "video/mp4", ".mov": "video/quicktime"}


def add_fuse_video(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "fuse-video",
        "Put the face of a picture into a video.",
        arguments="SOURCE TARGET OUTPUT --bundle BUNDLE [options]",
        details="Times of frames, sound, subtitles, chapters, rotation and colours stay as they are.",
        examples=[
            ("fusionray fuse-video a.jpg talk.mp4 fused.mp4 --bundle runs/mine/bundle", "whoever is seen most"),
            (
                "fusionray fuse-video a.jpg talk.mp4 fused.mp4 --who b.jpg --bundle runs/mine/bundle",
                "the person of b.jpg gets the face of a.jpg",
            ),
        ],
    )
    parser.add_argument("source", metavar="SOURCE", help="picture of the identity")
    parser.add_argument("target", metavar="TARGET", help="video to change")
    parser.add_argument("output", metavar="OUTPUT", help="result: an .mp4 or .mov file")
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
    faces.add_argument("--who", metavar="FILE", help="picture of a person: change the faces of whoever is most similar")
    faces.add_argument(
        "--who-similarity", type=float, metavar="COSINE", default=0.3, help="least similarity with it, -1 to 1 (0.3)"
    )
    encoding = parser.add_argument_group("encoding")
    encoding.add_argument("--encoder", default="libx264", help="FFmpeg's name of the encoder (libx264)")
    encoding.add_argument(
        "--encoder-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a setting of the encoder, such as crf=20; repeat it for more",
    )
    output = parser.add_argument_group("provenance")
    output.add_argument(
        "--certificate", metavar="PEM", help="sign with this certificate and its chain; default: a test key"
    )
    output.add_argument("--key", metavar="PEM", help="private key of the certificate")
    set_run(parser, run_fuse_video)


def run_fuse_video(options: argparse.Namespace) -> None:
    from fusionray.bundle.bundle import bundle_hash, read_bundle
    from fusionray.bundle.description import FACE_FUSION
    from fusionray.faces.detect import build_detector
    from fusionray.runtime.fuser import Fuser
    from fusionray.safety.provenance import Provenance
    from fusionray.safety.signing import build_signer
    from fusionray.safety.signing_keys import SigningConfig
    from fusionray.video.fusing import FramePlan, find_tracks, fuse_frames
    from fusionray.video.reader import VideoReader
    from fusionray.video.writer import VideoWriter

    output = Path(options.output)
    media_type = MEDIA_TYPES.get(output.suffix.lower())
    if media_type is None:
        raise ValueError(f"{output}: the name of the result must end in .mp4 or .mov, which can be signed")
    encoding: dict[str, Any] = {"encoder": options.encoder}
    if options.encoder_option:
        encoding["options"] = read_options(options.encoder_option)
    source = read_picture(options.source)
    signing = {"certificate": options.certificate, "key": options.key}
    settings = validate(SigningConfig, signing, "--certificate, --key")
    bundle = read_bundle(options.bundle, options.tracking_uri)
    bundle.require_task(FACE_FUSION)
    signer = build_signer(settings)
    fuser = Fuser(bundle, build_detector("default"))
    by_person = options.faces != "all" or options.who is not None
    if by_person and not fuser.preprocessor.compares_faces:
        raise ValueError(f"{bundle.description.name} takes pictures as sources and compares no faces; use --faces all")
    encoded = fuser.encode_source(source)
    with VideoReader(options.target) as reader, show_progress("find faces", reader) as bar:
        tracks = find_tracks(reader, fuser, bar.update, with_identities=by_person)
    chosen = choose_tracks(tracks, fuser, options)
    plan = FramePlan.of(chosen, encoded)
    output.parent.mkdir(parents=True, exist_ok=True)
    unsigned = output.with_name(f".{output.stem}.unsigned{output.suffix}")
    signed = output.with_name(f".{output.stem}.signed{output.suffix}")
    try:
        with (
            VideoReader(options.target) as reader,
            show_progress("fuse", reader) as bar,
            VideoWriter(unsigned, reader, **encoding) as writer,
        ):
            fuse_frames(reader, writer, fuser, plan, bar.update)
        with unsigned.open("rb") as film, signed.open("w+b") as result:
            signer.sign_stream(film, result, media_type, Provenance(bundle.description.name, bundle_hash(bundle)))
        signed.replace(output)
    finally:
        unsigned.unlink(missing_ok=True)
        signed.unlink(missing_ok=True)
    damaged = f"; {reader.num_damaged} damaged packets left out" if reader.num_damaged else ""
    print(
        f"{output}: {plan.num_faces} faces in {len(plan.points)} frames fused with {bundle.description.name}{damaged}; "
        "signed as AI-made"
    )


def choose_tracks(tracks: Sequence[Track], fuser: Fuser, options: argparse.Namespace) -> list[Track]:
    """Choose whose faces are changed.

    Raises: NoFaceFound, ImageRejected.
    """
    from fusionray.errors import ImageRejected, NoFaceFound
    from fusionray.runtime.face_preprocessor import find_largest_face
    from fusionray.video.people import choose_sources, group_people

    if not tracks:
        raise NoFaceFound(f"{options.target}: no face found in the video; nothing was written")
    if options.who is None and options.faces == "all":
        return list(tracks)
    people = group_people(tracks)
    if options.who is None:
        return [tracks[number] for number in people[0].tracks]
    reference = read_picture(options.who)
    face = find_largest_face(fuser.preprocessor.detector, reference, "reference")
    identity = fuser.preprocessor.embed_face(reference, face)
    chosen = choose_sources(people, [identity], options.who_similarity)
    if not chosen:
        best = max(float(person.identity @ identity) for person in people)
        raise ImageRejected(
            "no_such_face",
            f"{options.target}: nobody has a similarity of {options.who_similarity:g} with {options.who}; the best has "
            f"{best:.2f}",
        )
    return [tracks[number] for number in sorted(chosen)]


def show_progress(stage: str, reader: Any) -> Any:
    """Show a bar with frames/s and the time that is left."""
    from tqdm import tqdm

    return tqdm(desc=stage, total=reader.description.num_frames or None, unit=" frames", file=sys.stderr)


def read_options(pairs: Sequence[str]) -> dict[str, str]:
    """Read KEY=VALUE pairs.

    Raises: ValueError.
    """
    for pair in pairs:
        if "=" not in pair:
            raise ValueError(f"--encoder-option {pair}: write KEY=VALUE, such as crf=20")
    return dict((pair.split("=", 1)) for pair in pairs)
