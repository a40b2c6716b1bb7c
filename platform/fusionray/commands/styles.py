"""The verb for style transfer: stylize."""

from __future__ import annotations

import argparse
from pathlib import Path

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


def add_stylize(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "stylize",
        "Paint a picture in the style of another one.",
        arguments="CONTENT STYLE OUTPUT --bundle BUNDLE [options]",
        examples=[
            ("fusionray stylize town.jpg mosaic.jpg out.png --bundle runs/style/bundle", "town.jpg as a mosaic"),
            (
                "fusionray stylize town.jpg mosaic.jpg out.png --style ink.jpg --weights 0.7,0.3 --strength 0.8 "
                "--bundle runs/style/bundle",
                "7 parts mosaic, 3 parts ink, a fifth weaker",
            ),
        ],
    )
    parser.add_argument("content", metavar="CONTENT", help="picture to paint anew")
    parser.add_argument("style", metavar="STYLE", help="picture in the style to take")
    parser.add_argument(
        "output", metavar="OUTPUT", help="result: a .png, .jpg or .webp file; of a large content .png, .jpg or .tif"
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
    add_metadata_option(style, "content")
    add_provenance_options(parser)
    set_run(parser, run_stylize)


def run_stylize(options: argparse.Namespace) -> None:
    from fusionray.bundle.bundle import read_bundle
    from fusionray.bundle.description import STYLE_TRANSFER
    from fusionray.runtime.style_transfer.styles import check_strength, mix_styles, parse_weights
    from fusionray.runtime.style_transfer.stylizer import Stylizer

    places = [options.style, *options.more_styles]
    weights = None if options.weights is None else parse_weights(options.weights, len(places))
    check_strength(options.strength)
    output, large = Path(options.output), is_large(options.content)
    if large:
        find_band_format(output, options)
    else:
        find_format(output)
    styles = [read_picture(place) for place in places]
    content = None if large else read_picture(options.content)
    bundle = read_bundle(options.bundle, options.tracking_uri)
    bundle.require_task(STYLE_TRANSFER)
    signer, stylizer = open_signer(options), Stylizer(bundle)
    if content is None:
        mixed = mix_styles([stylizer.encode_style(style) for style in styles], weights)
        write_large(stylizer.tiled, mixed, bundle, options, signer=signer)
    else:
        painted = stylizer.stylize(content, styles, weights=weights, strength=options.strength)
        write_signed(painted, output, bundle, options, made_of=options.content, signer=signer)
    print(f"{output}: painted in {len(styles)} style(s) with {bundle.description.name}; signed as AI-made")
