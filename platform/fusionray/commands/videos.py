"""The verb for video files: fuse-video."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusionray.commands.parser import Parser, Verbs, add_verb, set_run
from fusionray.commands.pictures import read_picture
from fusionray.commands.restorers import (
    add_pixel_boost_option,
    add_restorer_option,
    add_skin_option,
    read_restorer_settings,
)
from fusionray.commands.signed_output import add_provenance_options, open_signer
from fusionray.commands.video_options import (
    add_encoding_options,
    add_work_options,
    check_video_options,
    make_video,
    read_encoder,
    tell_faults,
    tell_frames,
)
from fusionray.environment import resolve_location

if TYPE_CHECKING:
    from fusionray.runtime.fuser import Fuser
    from fusionray.runtime.pixels import FloatArray
    from fusionray.runtime.restorer import RestorerConfig
    from fusionray.video.face_fusion.tracks import Track
    from fusionray.video.face_fusion.work import FusionTask
    from fusionray.video.files.encoders import EncoderSettings


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
    model = parser.add_argument_group("model")
    model.add_argument("--bundle", required=True, help="bundle folder, or models:/name@alias")
    model.add_argument("--tracking-uri", metavar="URI", help="MLflow store behind models:/ locations")
    add_face_options(parser)
    encoding = add_encoding_options(parser)
    encoding.add_argument(
        "--copy-unchanged",
        action="store_true",
        help="copy parts without a face to fuse from the source, not encoded anew; some players want one encoder",
    )
    add_provenance_options(parser)
    add_work_options(parser)
    set_run(parser, run_fuse_video)


def add_face_options(parser: Parser) -> None:
    """Add the options of which faces are changed, and how."""
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
    add_skin_option(faces)
    add_pixel_boost_option(faces)
    add_restorer_option(faces)
    faces.add_argument(
        "--steady-colours",
        action="store_true",
        help="average the colours of fused faces over five frames, for a model that flickers; masks always are",
    )


def run_fuse_video(options: argparse.Namespace) -> None:
    from fusionray.bundle.bundle import bundle_hash, read_bundle
    from fusionray.bundle.description import FACE_FUSION
    from fusionray.runtime.restorer import describe_makers
    from fusionray.safety.provenance import Provenance
    from fusionray.video.face_fusion.report import describe_fusion
    from fusionray.video.face_fusion.work import FusionWork, FusionWorker, open_fuser

    options.output = resolve_location(options.output)
    target, output = Path(options.target), Path(options.output)
    check_video_options(target, output, options)
    pictures = [options.source, *options.identity]
    check_people(len(pictures), len(options.who))
    encoder = read_encoder(options)
    images = [read_picture(picture) for picture in pictures]
    references = [read_picture(picture) for picture in options.who]
    bundle = read_bundle(options.bundle, options.tracking_uri)
    bundle.require_task(FACE_FUSION)
    signer, restorer = open_signer(options), read_restorer_settings(options)
    fuser = open_fuser(bundle, restorer=restorer, skin=options.skin, pixel_boost=options.pixel_boost)
    by_person = options.faces != "all" or bool(options.who)
    if by_person and not fuser.preprocessor.compares_faces:
        raise ValueError(f"{bundle.description.name} takes pictures as sources and compares no faces; use --faces all")
    sources = [fuser.encode_source(image) for image in images]
    task = build_task(options, sources, restorer, encoder, by_person=by_person)
    who = [hashlib.sha256(picture.tobytes()).hexdigest() for picture in references]
    provenance = Provenance(describe_makers(bundle.description.name, fuser.restorer), bundle_hash(bundle))
    work = FusionWork(
        task,
        lambda tracks: choose_sources_of(tracks, references, fuser, options),
        {"faces": options.faces, "who": who, "who_similarity": options.who_similarity},
        provenance.bundle,
    )
    made = make_video(
        work,
        FusionWorker(task, fuser),
        output,
        lambda made: describe_fusion(made, target.name, provenance.model),
        options,
        signer=signer,
        provenance=provenance,
    )
    print(
        f"{output}: {made.plan.num_faces} faces in {len(made.plan.faces)} of {tell_frames(made)} fused with "
        f"{provenance.model}{tell_faults(made)}; signed as AI-made"
    )


def check_people(num_identities: int, num_references: int) -> None:
    """Check that every identity has a person whose faces it is for, if there are several.

    Raises: ValueError.
    """
    if num_identities > 1 and num_references != num_identities:
        raise ValueError(
            f"{num_identities} identities need {num_identities} --who pictures, {num_references} were given"
        )
    if num_references > num_identities:
        raise ValueError(f"--who was given {num_references} times; each further one needs an --identity")


def build_task(
    options: argparse.Namespace,
    sources: Sequence[FloatArray],
    restorer: RestorerConfig,
    encoder: EncoderSettings,
    *,
    by_person: bool,
) -> FusionTask:
    """Collect what a worker needs to make a segment."""
    from fusionray.safety.mark import MarkConfig
    from fusionray.video.face_fusion.work import FusionTask

    return FusionTask(
        Path(options.target),
        Path(options.output).suffix,
        options.bundle,
        options.tracking_uri,
        sources,
        by_person,
        encoder=encoder,
        mark=MarkConfig(enabled=options.mark),
        copy_unchanged=options.copy_unchanged,
        restorer=restorer,
        skin=options.skin,
        pixel_boost=options.pixel_boost,
        steady_colours=options.steady_colours,
        leave_out=tuple(options.leave_out),
    )


def choose_sources_of(
    tracks: Sequence[Track], references: Sequence[Any], fuser: Fuser, options: argparse.Namespace
) -> dict[int, int]:
    """Choose whose faces are changed: the number of the source by that of the track.

    Raises: ImageRejected.
    """
    from fusionray.runtime.face_preprocessor import find_largest_face
    from fusionray.video.face_fusion.choosing import choose_all, choose_main, choose_similar

    if not references:
        return choose_all(tracks) if options.faces == "all" else choose_main(tracks)
    detector = fuser.preprocessor.detector
    identities = [
        fuser.preprocessor.embed_face(picture, find_largest_face(detector, picture, "reference"))
        for picture in references
    ]
    return choose_similar(tracks, identities, options.who_similarity, options.who)
