"""The verbs that make bundles and prepare them: export, import, compile."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from fusionray.commands.options import add_common
from fusionray.config import load_config
from fusionray.environment import resolve_location


def add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="checkpoint or run folder")
    parser.add_argument("--output", metavar="DIR", required=True, help="folder of the bundle")
    parser.add_argument(
        "--layout",
        choices=("bundle", "facefusion"),
        default="bundle",
        help="facefusion: NAME.onnx, NAME.hash and NAME.json for that program; CHECKPOINT may be a bundle then",
    )
    parser.add_argument("--precision", metavar="LIST", help="generators: fp32,fp16,int8 (fp32 is always there)")
    add_common(parser, cluster=False)
    parser.set_defaults(run=run_export)


def run_export(options: argparse.Namespace) -> None:
    from fusionray.export.export import ExportConfig, export

    if options.layout == "facefusion":
        run_facefusion(options)
        return
    places = [f"checkpoint={options.checkpoint}", f"output={options.output}"]
    if options.precision:
        places.append(f"precisions=[{options.precision}]")
    bundle = export(load_config(ExportConfig, file=options.config, overrides=[*options.overrides, *places]))
    parity = bundle.description.parity
    assert parity is not None, "what was exported here was compared with torch"
    print(f"{bundle.folder}: differs from torch by {parity.largest_difference:.1e} (tolerance {parity.tolerance:g})")
    for precision, variant in bundle.description.variants.items():
        print(
            f"{bundle.folder / variant.file}: {variant.bytes:,} bytes; differs from fp32 by at most "
            f"{variant.largest_difference:.1e} (tolerance {variant.tolerance:g}), SSIM {variant.ssim:.4f}, PSNR "
            f"{variant.psnr_decibels:.1f} dB on {variant.crops} {variant.judged_on} ({precision})"
        )


def run_facefusion(options: argparse.Namespace) -> None:
    from fusionray.bundle.bundle import DESCRIPTION_NAME, read_bundle
    from fusionray.export.export import ExportConfig, export
    from fusionray.export.facefusion import write_facefusion

    if options.precision:
        raise ValueError("--precision has no effect on --layout facefusion, which is float32; leave it out")
    if options.checkpoint.startswith("models:/") or (Path(options.checkpoint) / DESCRIPTION_NAME).is_file():
        if options.config or options.overrides:
            raise ValueError("settings are for a checkpoint; a bundle is taken as it is: leave them out")
        written = write_facefusion(read_bundle(options.checkpoint), options.output)
    else:
        with tempfile.TemporaryDirectory(prefix="fusionray-export-") as temporary:
            places = [f"checkpoint={options.checkpoint}", f"output={temporary}/bundle"]
            config = load_config(ExportConfig, file=options.config, overrides=[*options.overrides, *places])
            written = write_facefusion(export(config), options.output)
    print(f"{written.model}: computes what the bundle does; {written.entry.name} says what FaceFusion has to be told")


def add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("generator", metavar="GENERATOR", help="ONNX file of the face swapper")
    parser.add_argument("--output", metavar="DIR", required=True, help="folder of the bundle")
    parser.add_argument("--identity", metavar="FILE", help="ONNX file of the ArcFace encoder that it was made for")
    parser.add_argument("--like", metavar="NAME", help="a contract that is known, such as inswapper_128")
    parser.add_argument("--licence", help="licence of the weights; required")
    parser.add_argument("--name", help="name of the model; default: that of its file")
    parser.add_argument("--template", help="template at which targets are cut, such as arcface_128")
    parser.add_argument("--source-kind", choices=("embedding", "picture"), help="what stands for a source")
    parser.add_argument("--size", type=int, help="size of a target's crop, where the model leaves it open")
    add_common(parser, cluster=False)
    parser.set_defaults(run=run_import)


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
        f"{bundle.folder}: {described.name}, {described.size} px at {described.template}, batch {batch}, source "
        f"{list(bundle.source_shape)}; it ran, what it shows is for you to look at"
    )


def add_compile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="BUNDLE", help="bundle folder, or models:/name@alias")
    parser.add_argument("--cache", metavar="DIR", required=True, help="folder of the engines, best on shared storage")
    parser.add_argument("--batches", metavar="N,...", help="batch sizes to prepare for (batches)")
    parser.add_argument(
        "--precision", action="append", choices=("fp32", "bf16", "fp16"), help="build for this one; may be repeated"
    )
    parser.add_argument("--tracking-uri", help="MLflow store behind models:/ locations")
    add_common(parser, cluster=False)
    parser.set_defaults(run=run_compile)


def run_compile(options: argparse.Namespace) -> None:
    from fusionray.bundle.bundle import read_bundle
    from fusionray.runtime.compile import compile_bundle
    from fusionray.runtime.config import RuntimeConfig

    wishes = [f"batches=[{options.batches}]"] if options.batches else []
    overrides = [*options.overrides, *wishes, f"cache={resolve_location(options.cache)}"]
    settings = load_config(RuntimeConfig, file=options.config, overrides=overrides)
    bundle = read_bundle(options.bundle, options.tracking_uri)
    for compiled in compile_bundle(bundle, settings, options.precision or ()):
        print(compiled.describe())
