"""The verbs that write bundles and compile them: export, import, compile."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from fusionray.commands.parser import Verbs, add_settings, add_verb, set_run
from fusionray.environment import REGISTRY_PREFIX, resolve_location


def add_export(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "export",
        "Export a checkpoint as an ONNX bundle.",
        arguments="CHECKPOINT --output DIR [options] [KEY=VALUE ...]",
        details="The bundle is written only if ONNX computes what torch computes.",
        examples=[
            (
                "fusionray export runs/mine/first --output runs/mine/bundle --precision fp32,fp16,int8",
                "a bundle with smaller generators next to the float32 one",
            ),
            (
                "fusionray export runs/mine/bundle --layout facefusion --output runs/mine/facefusion",
                "a model file for the program FaceFusion",
            ),
        ],
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="checkpoint or run folder")
    parser.add_argument("--output", metavar="DIR", required=True, help="folder of the bundle")
    parser.add_argument(
        "--layout",
        choices=("bundle", "facefusion"),
        default="bundle",
        help="facefusion: write NAME.onnx, NAME.hash and NAME.json for that program; CHECKPOINT may then be a bundle",
    )
    parser.add_argument("--precision", metavar="LIST", help="generators to write: fp32,fp16,int8 (always fp32)")
    add_settings(parser, cluster=False)
    set_run(parser, run_export)


def run_export(options: argparse.Namespace) -> None:
    from fusionray.config import load_config
    from fusionray.export.export import ExportConfig, export

    options.output = resolve_location(options.output)
    if options.layout == "facefusion":
        run_facefusion(options)
        return
    places = [f"checkpoint={options.checkpoint}", f"output={options.output}"]
    if options.precision:
        places.append(f"precisions=[{options.precision}]")
    bundle = export(load_config(ExportConfig, file=options.config, overrides=[*options.overrides, *places]))
    parity = bundle.description.parity
    assert parity is not None, "export compares every bundle with torch"
    print(f"{options.output}: differs from torch by {parity.largest_difference:.1e} (tolerance {parity.tolerance:g})")
    for precision, variant in bundle.description.variants.items():
        print(
            f"{options.output}/{variant.file}: {variant.bytes:,} bytes; differs from fp32 by at most "
            f"{variant.largest_difference:.1e} (tolerance {variant.tolerance:g}), SSIM {variant.ssim:.4f}, PSNR "
            f"{variant.psnr_decibels:.1f} dB on {variant.crops} {variant.measured_on} ({precision})"
        )


def run_facefusion(options: argparse.Namespace) -> None:
    from fusionray.bundle.bundle import read_bundle
    from fusionray.bundle.description import DESCRIPTION_NAME
    from fusionray.config import load_config
    from fusionray.export.export import ExportConfig, export
    from fusionray.export.facefusion import write_facefusion

    if options.precision:
        raise ValueError("--precision has no effect with --layout facefusion, which writes float32; leave it out")
    if options.checkpoint.startswith(REGISTRY_PREFIX) or (Path(options.checkpoint) / DESCRIPTION_NAME).is_file():
        if options.config or options.overrides:
            raise ValueError("settings apply to a checkpoint, and CHECKPOINT is a bundle; leave them out")
        written = write_facefusion(read_bundle(options.checkpoint), options.output)
    else:
        with tempfile.TemporaryDirectory(prefix="fusionray-export-") as temporary:
            places = [f"checkpoint={options.checkpoint}", f"output={temporary}/bundle"]
            config = load_config(ExportConfig, file=options.config, overrides=[*options.overrides, *places])
            written = write_facefusion(export(config), options.output)
    print(f"{written.model}: computes the same as the bundle; {written.entry.name} holds the settings for FaceFusion")


def add_import(verbs: Verbs) -> None:
    from fusionray.export.published_layouts import list_layouts

    parser = add_verb(
        verbs,
        "import",
        "Turn a face swapper made elsewhere, as ONNX, into a bundle.",
        arguments="GENERATOR --output DIR --licence LICENCE [options] [KEY=VALUE ...]",
        examples=[
            (
                "fusionray import inswapper_128.onnx --identity w600k_r50.onnx --like inswapper_128 "
                "--licence Non-Commercial --output runs/inswapper",
                "a model whose conventions are known",
            )
        ],
    )
    parser.add_argument("generator", metavar="GENERATOR", help="ONNX file of the face swapper")
    parser.add_argument("--output", metavar="DIR", required=True, help="folder of the bundle")
    parser.add_argument("--licence", help="licence of the weights; required")
    parser.add_argument("--name", help="name of the model; default: that of its file")
    model = parser.add_argument_group("what the ONNX file does not say")
    layouts = list_layouts()
    model.add_argument(
        "--like",
        metavar="NAME",
        choices=layouts,
        help=f"take the known conventions of a published model: {', '.join(layouts)}",
    )
    model.add_argument("--identity", metavar="FILE", help="ONNX file of the ArcFace encoder that the model expects")
    model.add_argument("--template", help="alignment template of the target crops, such as arcface_128")
    model.add_argument("--source-kind", choices=("embedding", "picture"), help="what the model takes as its source")
    model.add_argument("--size", type=int, help="side of the target crop in pixels, if the model accepts any")
    add_settings(parser, cluster=False)
    set_run(parser, run_import)


def run_import(options: argparse.Namespace) -> None:
    from fusionray.export.import_layouts import load_import_config
    from fusionray.export.import_onnx import import_model

    fields = ("generator", "output", "identity", "licence", "name", "template", "source_kind", "size")
    said = [f"{field}={json.dumps(getattr(options, field))}" for field in fields if getattr(options, field) is not None]
    config = load_import_config(like=options.like, file=options.config, overrides=[*options.overrides, *said])
    bundle = import_model(config)
    described = bundle.description
    batch = described.tensors["generator.onnx"]["target"].shape[0]
    print(
        f"{options.output}: {described.name}, {described.size} px at {described.template}, batch {batch}, source "
        f"{list(bundle.source_shape)}; it runs; look at a fused picture before you rely on it"
    )


def add_compile(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "compile",
        "Compile a bundle ahead of serving, so that no replica has to.",
        arguments="BUNDLE --cache DIR [options] [KEY=VALUE ...]",
        details="Run it on the same kind of hardware as the replicas.",
        examples=[
            ("fusionray compile runs/mine/bundle --cache runs/engines --batches 1,8", "engines for batches of 1 and 8"),
            ("fusionray compile runs/mine/bundle --cache runs/engines --variant fp16", "also the fp16 generator"),
        ],
    )
    parser.add_argument("bundle", metavar="BUNDLE", help="bundle folder, or models:/name@alias")
    parser.add_argument("--cache", metavar="DIR", required=True, help="folder of the engines, best on shared storage")
    parser.add_argument("--batches", metavar="N,...", help="batch sizes to compile for (batches)")
    parser.add_argument(
        "--precision",
        action="append",
        choices=("fp32", "bf16", "fp16"),
        help="compute precision to compile for (precision); may be repeated",
    )
    parser.add_argument(
        "--variant",
        action="append",
        choices=("fp16", "int8"),
        help="quantized generator to compile besides the float32 one; may be repeated",
    )
    parser.add_argument("--tracking-uri", metavar="URI", help="MLflow store behind models:/ locations")
    add_settings(parser, cluster=False)
    set_run(parser, run_compile)


def run_compile(options: argparse.Namespace) -> None:
    from fusionray.bundle.bundle import read_bundle
    from fusionray.config import load_config
    from fusionray.runtime.config import RuntimeConfig
    from fusionray.runtime.engines.compile import compile_bundle

    wishes = [f"batches=[{options.batches}]"] if options.batches else []
    overrides = [*options.overrides, *wishes, f"cache={resolve_location(options.cache)}"]
    settings = load_config(RuntimeConfig, file=options.config, overrides=overrides)
    bundle = read_bundle(options.bundle, options.tracking_uri)
    for compiled in compile_bundle(bundle, settings, options.precision or (), variants=options.variant or ()):
        print(compiled.describe())
