"""The verbs for picture files: fuse, verify."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from fusionray.commands.parser import Verbs, add_verb, set_run
from fusionray.commands.restorers import (
    add_pixel_boost_option,
    add_restorer_option,
    add_skin_option,
    read_restorer,
)
from fusionray.commands.signed_output import (
    add_metadata_option,
    add_provenance_options,
    find_format,
    open_signer,
    write_signed,
)
from fusionray.errors import ImageRejected, InputMissing

if TYPE_CHECKING:
    from fusionray.faces.face import Face, Image
    from fusionray.runtime.face_preprocessor import FacePreprocessor


def add_fuse(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "fuse",
        "Put the face of one picture into another picture.",
        arguments="SOURCE TARGET OUTPUT --bundle BUNDLE [options]",
        examples=[
            ("fusionray fuse a.jpg b.jpg fused.png --bundle runs/mine/bundle", "the face of a.jpg in b.jpg"),
            (
                "fusionray fuse a.jpg two.jpg fused.png --source b.jpg --faces 0,1 --bundle runs/mine/bundle",
                "a.jpg for the largest face, b.jpg for the next",
            ),
        ],
    )
    parser.add_argument("source", metavar="SOURCE", help="picture of the identity")
    parser.add_argument("target", metavar="TARGET", help="picture to change")
    parser.add_argument("output", metavar="OUTPUT", help="result: a .png, .jpg or .webp file")
    model = parser.add_argument_group("model")
    model.add_argument("--bundle", required=True, help="bundle folder, or models:/name@alias")
    model.add_argument("--tracking-uri", metavar="URI", help="MLflow store behind models:/ locations")
    faces = parser.add_argument_group("faces")
    faces.add_argument(
        "--faces",
        metavar="WHICH",
        default="largest",
        help="faces of the target to change: largest, all, or numbers by size, as in 0,2 (largest)",
    )
    faces.add_argument(
        "--source",
        dest="more_sources",
        metavar="FILE",
        action="append",
        default=[],
        help="a further source, for the next number in --faces (SOURCE is for the first); repeat it for more",
    )
    faces.add_argument(
        "--reference", metavar="FILE", help="picture of a person: change the face of the target that is most similar"
    )
    faces.add_argument(
        "--reference-similarity",
        type=float,
        metavar="COSINE",
        help="least similarity with the reference, -1 to 1; depends on the identity encoder (0.3)",
    )
    faces.add_argument(
        "--strength", type=float, metavar="SHARE", default=1.0, help="share of the fused face in the blend, 0 to 1 (1)"
    )
    add_skin_option(faces)
    add_pixel_boost_option(faces)
    faces.add_argument(
        "--detector", metavar="FILE", default="default", help="YuNet or SCRFD ONNX file; default: the built-in detector"
    )
    add_metadata_option(faces, "target")
    faces.add_argument(
        "--target-policy",
        metavar="FILE",
        help="YAML file with the settings of the service's section target_policy: refuse targets by a classifier",
    )
    add_restorer_option(faces)
    add_provenance_options(parser)
    set_run(parser, run_fuse)


def run_fuse(options: argparse.Namespace) -> None:
    from fusionray.bundle.bundle import read_bundle
    from fusionray.bundle.description import FACE_FUSION
    from fusionray.config import read_yaml, validate
    from fusionray.faces.detectors.factory import build_detector
    from fusionray.runtime.fuser import Fuser
    from fusionray.runtime.restorer import describe_makers
    from fusionray.safety.target_policy import TargetPolicyConfig, open_target_policy

    check_choices(options)
    output = Path(options.output)
    find_format(output)
    sources = [read_picture(place) for place in (options.source, *options.more_sources)]
    target = read_picture(options.target)
    bundle = read_bundle(options.bundle, options.tracking_uri)
    bundle.require_task(FACE_FUSION)
    signer, restorer = open_signer(options), read_restorer(options)
    fuser = Fuser(
        bundle,
        build_detector(options.detector),
        restorer=restorer,
        skin=options.skin,
        pixel_boost=options.pixel_boost,
    )
    encoded = [fuser.encode_source(source) for source in sources]
    chosen = choose_faces(fuser.preprocessor, target, options)
    if options.target_policy is not None:
        tree = read_yaml(Path(options.target_policy))
        policy = open_target_policy(validate(TargetPolicyConfig, tree, options.target_policy))
        if policy is not None:
            policy.check(target, chosen)
    fused = fuser.fuse_chosen(encoded, target, chosen, options.strength)
    model = describe_makers(bundle.description.name, restorer)
    write_signed(fused.image, output, bundle, options, made_of=options.target, signer=signer, model=model)
    print(f"{output}: {fused.num_faces} face(s) fused with {bundle.description.name}; signed as AI-made")


def check_choices(options: argparse.Namespace) -> None:
    """Check which faces, how many sources and which strength were asked for.

    Raises: ValueError.
    """
    from fusionray.runtime.face_preprocessor import SELECTION_PATTERN, check_sources

    if options.reference is not None and options.faces != "largest":
        raise ValueError("--faces and --reference: give one of them")
    if options.faces == "reference" or not re.match(SELECTION_PATTERN, options.faces):
        raise ValueError(f"--faces {options.faces}: give largest, all, or numbers of faces such as 0,2")
    try:
        check_sources(1 + len(options.more_sources), options.faces)
    except ValueError as error:
        raise ValueError(f"--faces {options.faces}: {error}") from None
    if not 0.0 <= options.strength <= 1.0:
        raise ValueError(f"--strength {options.strength:g}: give a number from 0 (the target as it is) to 1")


def choose_faces(preprocessor: FacePreprocessor, target: Image, options: argparse.Namespace) -> list[Face]:
    """Choose the faces of the target: by size and number, or the one that is most similar to a reference."""
    from fusionray.runtime.face_preprocessor import (
        REFERENCE_SIMILARITY,
        find_largest_face,
        pick_faces,
        search_faces,
    )

    if options.reference is None:
        return pick_faces(search_faces(preprocessor.detector, target, options.faces), options.faces)
    least = REFERENCE_SIMILARITY if options.reference_similarity is None else options.reference_similarity
    reference = read_picture(options.reference)
    identity = preprocessor.embed_face(reference, find_largest_face(preprocessor.detector, reference, "reference"))
    return preprocessor.pick_similar(target, search_faces(preprocessor.detector, target, "all"), identity, least)


def read_picture(place: str) -> Image:
    """Decode a picture file; errors name the file."""
    from fusionray.faces.image_files.decode import decode_image

    try:
        return decode_image(Path(place).read_bytes())
    except OSError as error:
        raise InputMissing(f"{place}: cannot be read ({error.strerror}); check the path") from None
    except ImageRejected as error:
        raise ImageRejected(error.reason, f"{place}: {error}") from None


def add_verify(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "verify",
        "Check who signed a picture and which model made it.",
        arguments="FILE [FILE ...] [options]",
        details="It also tells whether a picture was changed after it was signed.",
        examples=[("fusionray verify fused.png", "signature, model and changes of one file")],
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="picture, MP4 video, or HTML report with pictures")
    parser.add_argument("--trust", metavar="PEM", help="certificates of the CAs whose signers are trusted")
    parser.add_argument("--json", action="store_true", help="print every finding, as a JSON list")
    set_run(parser, run_verify)


def run_verify(options: argparse.Namespace) -> None:
    from fusionray.safety.verify_files import verify_files

    verify_files(options.files, trust=options.trust, as_json=options.json)
