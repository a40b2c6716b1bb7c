"""The verb for style transfer: stylize, for pictures and videos."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fusionray.commands.large_pictures import find_band_format, is_large, write_large
from fusionray.commands.parser import Verbs, add_verb, set_run
from fusionray.commands.pictures import read_picture
from fusionray.commands.signed_output import (
    add_metadata_option,
    add_provenance_options,
    find_format,
    open_signer,
    write_signed,
)
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
    from fusionray.bundle.bundle import Bundle
    from fusionray.runtime.pixels import FloatArray
    from fusionray.runtime.style_transfer.tiled_stylizer import TiledStylizer
    from fusionray.safety.signing import Signer


def add_stylize(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "stylize",
        "Paint a picture or a video in the style of a picture.",
        arguments="CONTENT STYLE OUTPUT --bundle BUNDLE [options]",
        details="Of a video, times of frames, sound, subtitles, chapters, rotation and colours stay as they are,\n"
        "and a repeated command goes on where an interrupted one was.",
        examples=[
            ("fusionray stylize town.jpg mosaic.jpg out.png --bundle runs/style/bundle", "town.jpg as a mosaic"),
            (
                "fusionray stylize town.jpg mosaic.jpg out.png --style ink.jpg --weights 0.7,0.3 --strength 0.8 "
                "--bundle runs/style/bundle",
                "7 parts mosaic, 3 parts ink, a fifth weaker",
            ),
            ("fusionray stylize walk.mp4 mosaic.jpg out.mp4 --bundle runs/style/bundle", "a video"),
        ],
    )
    parser.add_argument("content", metavar="CONTENT", help="picture or video to paint anew")
    parser.add_argument("style", metavar="STYLE", help="picture in the style to take")
    parser.add_argument(
        "output",
        metavar="OUTPUT",
        help="result: a .png, .jpg or .webp file; of a large content .png, .jpg or .tif; of a video .mp4 or .mov",
    )
    model = parser.add_argument_group("model")
    model.add_argument("--bundle", required=True, help="bundle folder, or models:/name@alias")
    model.add_argument("--tracking-uri", metavar="URI", help="MLflow store behind models:/ locations")
    style = parser.add_argument_group("style")
    style.add_argument(
        "--style",
        dest="more_styles",
        metavar="FILE",
        action="append",
        default=[],
        help="a further style to mix in; repeat it for more",
    )
    style.add_argument("--weights", metavar="W,W", help="share of each style, STYLE first; default: equal shares")
    style.add_argument(
        "--strength", type=float, metavar="SHARE", default=1.0, help="how strong the style is, 0 to 1 (1)"
    )
    add_metadata_option(style, "content, if it is a picture")
    add_provenance_options(parser)
    add_encoding_options(parser, "encoding of a video")
    add_work_options(parser, "work on a video")
    set_run(parser, run_stylize)


def run_stylize(options: argparse.Namespace) -> None:
    from fusionray.bundle.bundle import read_bundle
    from fusionray.bundle.description import STYLE_TRANSFER
    from fusionray.runtime.style_transfer.styles import check_strength, mix_styles, parse_weights
    from fusionray.runtime.style_transfer.stylizer import Stylizer

    places = [options.style, *options.more_styles]
    weights = None if options.weights is None else parse_weights(options.weights, len(places))
    check_strength(options.strength)
    options.output = resolve_location(options.output)
    content, output = Path(options.content), Path(options.output)
    is_film = is_video(content, output)
    large = not is_film and is_large(options.content)
    if is_film:
        check_video_options(content, output, options)
    elif large:
        find_band_format(output, options)
    else:
        find_format(output)
    styles = [read_picture(place) for place in places]
    picture = None if large or is_film else read_picture(options.content)
    bundle = read_bundle(options.bundle, options.tracking_uri)
    bundle.require_task(STYLE_TRANSFER)
    signer, stylizer = open_signer(options), Stylizer(bundle)
    mixed = mix_styles([stylizer.encode_style(style) for style in styles], weights)
    said = ""
    if is_film:
        said = paint_video(stylizer.tiled, mixed, bundle, options, signer=signer)
    elif picture is None:
        write_large(stylizer.tiled, mixed, bundle, options, signer=signer)
    else:
        painted = stylizer.paint(picture, mixed, options.strength)
        write_signed(painted, output, bundle, options, made_of=options.content, signer=signer)
    print(f"{output}: {said}painted in {len(styles)} style(s) with {bundle.description.name}; signed as AI-made")


def is_video(content: Path, output: Path) -> bool:
    """Tell whether a video is painted: the first bytes of the content, or the name of the result, say so.

    An animated GIF or WebP may become either. What cannot be read is said by whoever reads it as a picture.
    """
    from fusionray.video.files.signature import SIGNATURE_BYTES, find_video_suffix
    from fusionray.video.run import MEDIA_TYPES

    if output.suffix.lower() in MEDIA_TYPES:
        return True
    try:
        with content.open("rb") as file:
            return find_video_suffix(file.read(SIGNATURE_BYTES)) is not None
    except OSError:
        return False


def paint_video(
    stylizer: TiledStylizer, style: FloatArray, bundle: Bundle, options: argparse.Namespace, *, signer: Signer
) -> str:
    """Paint a video in an encoded style, and write it and its report; return what to say of it.

    Raises: as `make_video`.
    """
    from fusionray.bundle.bundle import bundle_hash
    from fusionray.safety.mark import MarkConfig
    from fusionray.safety.provenance import Provenance
    from fusionray.video.style_transfer.report import describe_painting
    from fusionray.video.style_transfer.work import StyleTask, StyleWork, StyleWorker

    content, output = Path(options.content), Path(options.output)
    task = StyleTask(
        content,
        output.suffix,
        options.bundle,
        options.tracking_uri,
        style,
        options.strength,
        encoder=read_encoder(options),
        mark=MarkConfig(enabled=options.mark),
        leave_out=tuple(options.leave_out),
    )
    provenance = Provenance(bundle.description.name, bundle_hash(bundle))
    num_styles = 1 + len(options.more_styles)
    made = make_video(
        StyleWork(task, provenance.bundle),
        StyleWorker(task, stylizer),
        output,
        lambda made: describe_painting(made, content.name, num_styles, provenance.model),
        options,
        signer=signer,
        provenance=provenance,
    )
    return f"{tell_frames(made)}{tell_faults(made)}, "
