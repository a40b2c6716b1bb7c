"""The command line: one verb a stage. Each verb is a configuration, a function and a line about the result."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fusionray import __version__
from fusionray.config import list_presets, load_config, validate
from fusionray.errors import FusionRayError, ImageRejected, InputMissing, RunStopped
from fusionray.ops.environment import apply_defaults, resolve_location
from fusionray.training.notice import EXIT_STATUS

if TYPE_CHECKING:
    from fusionray.faces.face import Image


# What `train --profile` records; tracking.profile_steps=N records another number.
PROFILE_STEPS = 5
TEST_KEY_NOTE = (
    "outputs are signed with a TEST KEY, which proves nothing to others: give one of your own with signing.certificate "
    "and signing.key before anybody relies on it (docs/provenance.md)"
)
BENCHES = ("train", "recovery", "serve")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; exit 0, or print one line that says what is wrong and exit 1 (143 for what a SIGTERM ended)."""
    options = parse(arguments)
    apply_defaults(getattr(options, "address", None))
    run: Callable[[argparse.Namespace], None] = options.run
    try:
        run(options)
    except RunStopped as error:
        print(f"fusionray {options.verb}: {error}", file=sys.stderr)
        return EXIT_STATUS
    except (FusionRayError, ValueError) as error:
        print(f"fusionray {options.verb}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except OSError as error:
        said = f"{error}; free space or mend the access, then run the same command again"
        print(f"fusionray {options.verb}: {' '.join(said.split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"fusionray {options.verb}: interrupted; the same command goes on where it stopped", file=sys.stderr)
        return 130
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; what is neither an option nor a named argument are `key=value` overrides.

    A positional argument of any number would swallow them only where they stand together: `INPUT --output DIR a=1`
    is refused by argparse.
    """
    parser = build_parser()
    options, rest = parser.parse_known_args(arguments)
    strange = [item for item in rest if item.startswith("-") or not getattr(options, "takes_overrides", False)]
    if strange:
        parser.error(f"{options.verb}: unknown argument {' '.join(strange)}; see fusionray {options.verb} --help")
    options.overrides = rest
    return options


def run_job(verb: str) -> int:
    """Run a verb with the command line of a script in `jobs/`."""
    return main([verb, *sys.argv[1:]])


def build_parser() -> argparse.ArgumentParser:
    """Describe the verbs."""
    parser = argparse.ArgumentParser(prog="fusionray", description="Train and serve face-fusion models on Ray.")
    parser.add_argument("--version", action="version", version=f"fusionray {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    add_prepare(verbs.add_parser("prepare", help="pictures -> aligned, sharded crops"))
    add_train(verbs.add_parser("train", help="shards -> checkpoints; the same command goes on where it stopped"))
    add_tune(verbs.add_parser("tune", help="search for better settings; the same command goes on where it stopped"))
    add_evaluate(verbs.add_parser("evaluate", help="judge a model on people that nothing was learned from"))
    add_export(verbs.add_parser("export", help="checkpoint -> checked ONNX bundle"))
    add_compile(verbs.add_parser("compile", help="bundle -> engines in a cache, so that no replica has to build them"))
    add_import(verbs.add_parser("import", help="a face swapper made elsewhere, as ONNX -> bundle"))
    add_fuse(verbs.add_parser("fuse", help="fuse two picture files with a bundle"))
    add_verify(verbs.add_parser("verify", help="say what a picture proves about its making"))
    add_serve(verbs.add_parser("serve", help="serve a bundle over HTTP"))
    add_keys(verbs.add_parser("keys", help="make, list and remove the API keys of the service"))
    add_bench(verbs.add_parser("bench", help="measure what is promised about speed, recovery and serving"))
    return parser


def add_common(parser: argparse.ArgumentParser, *, cluster: bool = True) -> None:
    parser.add_argument("--config", metavar="FILE", help="YAML file with settings")
    if cluster:
        parser.add_argument("--address", help="Ray cluster to use; default: one on this machine, stopped at the end")
    parser.epilog = "KEY=VALUE, anywhere behind the verb: settings that win over the file"
    parser.set_defaults(takes_overrides=True)


def add_prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="INPUT", help="folder, tar or zip of pictures, or synthetic://people=500,...")
    parser.add_argument("output", metavar="OUTPUT", help="folder or URI for the shards")
    add_common(parser)
    parser.set_defaults(run=run_prepare)


def run_prepare(options: argparse.Namespace) -> None:
    from fusionray.data.prepare import PrepareConfig, prepare
    from fusionray.ops.cluster import cluster

    source = options.input if "://" in options.input else resolve_location(options.input)
    places = [f"input={source}", f"output={resolve_location(options.output)}"]
    config = load_config(PrepareConfig, file=options.config, overrides=[*options.overrides, *places])
    with cluster(options.address):
        manifest = prepare(config)
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(manifest.dropped.items())) or "none"
    print(
        f"{config.output}: {manifest.num_images} crops of {manifest.num_identities} people in {len(manifest.shards)} "
        f"shards; dropped: {dropped}"
    )


def add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", help=f"settings to start from: {', '.join(list_presets())}")
    parser.add_argument("--output", metavar="DIR", help="folder or URI that holds the runs (run.output)")
    parser.add_argument("--profile", action="store_true", help=f"trace {PROFILE_STEPS} steps into the run's profile/")
    parser.add_argument(
        "--dry-run", action="store_true", help="show settings, sizes, costs and one step; needs no shards and no Ray"
    )
    add_common(parser)
    parser.set_defaults(run=run_train)


def train_overrides(options: argparse.Namespace) -> list[str]:
    """Turn the options of `train` into overrides; those of the user win over what `--profile` stands for."""
    places = [f"run.output={options.output}"] if options.output else []
    wishes = [f"tracking.profile_steps={PROFILE_STEPS}"] if options.profile else []
    return [*wishes, *options.overrides, *places]


def run_train(options: argparse.Namespace) -> None:
    overrides = train_overrides(options)
    if options.dry_run:
        from fusionray.training.planning.dry_run import dry_run, load_dry_config

        dry_run(load_dry_config(options.config, overrides, options.preset))
        return
    from fusionray.ops.cluster import cluster
    from fusionray.training.settings import TrainConfig

    config = load_config(TrainConfig, file=options.config, overrides=overrides, preset=options.preset)
    with cluster(options.address):
        from fusionray.training.train import train

        result = train(config)
    figures = ", ".join(f"{key} {value:.4g}" for key, value in sorted(result.metrics.items()))
    print(f"{result.checkpoint}: {result.images_seen} images in {result.seconds:.0f} s; {figures}")


def add_tune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", metavar="DIR", help="local folder that holds the search (output)")
    parser.add_argument("--register", metavar="NAME", help="register the best trial's bundle as NAME (register_as)")
    add_common(parser)
    parser.set_defaults(run=run_tune)


def run_tune(options: argparse.Namespace) -> None:
    from fusionray.ops.cluster import cluster
    from fusionray.tuning.settings import TuneConfig

    wishes = {"output": options.output, "register_as": options.register}
    places = [f"{key}={value}" for key, value in wishes.items() if value]
    config = load_config(TuneConfig, file=options.config, overrides=[*options.overrides, *places])
    with cluster(options.address):
        from fusionray.tuning.driver import tune

        result = tune(config)
    print(result.summary)


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="bundle, models:/name@alias, or checkpoint or run folder")
    parser.add_argument("--data", metavar="SHARDS", required=True, help="folder or URI of shards with a test split")
    parser.add_argument("--output", metavar="DIR", required=True, help="folder of figures.json, report.html, pairs.csv")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON in place of the table")
    add_common(parser)
    parser.set_defaults(run=run_evaluate)


def run_evaluate(options: argparse.Namespace) -> None:
    from fusionray.evaluation.config import EvaluateConfig
    from fusionray.ops.cluster import cluster

    places = [f"model={options.model}", f"data={options.data}", f"output={options.output}"]
    config = load_config(EvaluateConfig, file=options.config, overrides=[*options.overrides, *places])
    with cluster(options.address):
        from fusionray.evaluation.evaluate import evaluate

        result = evaluate(config)
    print(result.figures.model_dump_json(indent=1) if options.json else result.table)


def add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="checkpoint or run folder of a face-fusion run")
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
    from fusionray.export.onnx import ExportConfig, export

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
    from fusionray.export.bundle import DESCRIPTION_NAME, read_bundle
    from fusionray.export.facefusion import write_facefusion
    from fusionray.export.onnx import ExportConfig, export

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
    from fusionray.export.contracts import load_import_config
    from fusionray.export.outside import import_model

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
    from fusionray.export.bundle import read_bundle
    from fusionray.runtime.compile import compile_bundle
    from fusionray.runtime.settings import RuntimeSettings

    wishes = [f"batches=[{options.batches}]"] if options.batches else []
    overrides = [*options.overrides, *wishes, f"cache={resolve_location(options.cache)}"]
    settings = load_config(RuntimeSettings, file=options.config, overrides=overrides)
    bundle = read_bundle(options.bundle, options.tracking_uri)
    for compiled in compile_bundle(bundle, settings, options.precision or ()):
        print(compiled.describe())


def add_fuse(parser: argparse.ArgumentParser) -> None:
    for name, text in (("source", "picture of the identity"), ("target", "picture to change"), ("output", "result")):
        parser.add_argument(name, metavar=name.upper(), help=text)
    parser.add_argument("--bundle", required=True, help="bundle folder, or models:/name@alias")
    parser.add_argument("--faces", choices=("largest", "all"), default="largest", help="faces of the target to change")
    parser.add_argument("--detector", default="default", help="'default', or the path of a YuNet or SCRFD ONNX file")
    parser.add_argument("--tracking-uri", help="MLflow store behind models:/ locations")
    parser.add_argument("--certificate", metavar="PEM", help="signing certificate and its chain; default: a test key")
    parser.add_argument("--key", metavar="PEM", help="private key of the certificate")
    parser.add_argument("--mark", action="store_true", help="draw a small plate that says AI into a corner")
    parser.set_defaults(run=run_fuse)


def run_fuse(options: argparse.Namespace) -> None:
    from fusionray.export.bundle import bundle_hash, read_bundle
    from fusionray.faces.detect import build_detector
    from fusionray.runtime.fuser import Fuser
    from fusionray.safety.keys import SigningSettings
    from fusionray.safety.mark import Mark, MarkSettings
    from fusionray.safety.output import encode_output
    from fusionray.safety.provenance import Provenance
    from fusionray.safety.signing import build_signer

    formats = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}
    output = Path(options.output)
    if output.suffix.lower() not in formats:
        raise ValueError(f"{output}: name the result .png, .jpg or .webp")
    source, target = read_picture(options.source), read_picture(options.target)
    signing = {"certificate": options.certificate, "key": options.key}
    settings = validate(SigningSettings, signing, "--certificate, --key")
    bundle = read_bundle(options.bundle, options.tracking_uri)
    signer = build_signer(settings)
    fused = Fuser(bundle, build_detector(options.detector)).fuse(source, target, options.faces)
    provenance = Provenance(bundle.description.name, bundle_hash(bundle))
    data = encode_output(
        fused.image,
        provenance,
        formats[output.suffix.lower()],  # type: ignore[arg-type]
        signer=signer,
        mark=Mark(MarkSettings(enabled=True)) if options.mark else None,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(data)
    print(f"{output}: {fused.num_faces} face(s) fused with {bundle.description.name}; signed as AI-made")


def read_picture(place: str) -> Image:
    """Decode a picture file; what is wrong with it is said with its name."""
    from fusionray.faces.decode import decode_image

    try:
        return decode_image(Path(place).read_bytes())
    except OSError as error:
        raise InputMissing(f"{place}: cannot be read ({error.strerror}); check the path") from None
    except ImageRejected as error:
        raise ImageRejected(error.reason, f"{place}: {error}") from None


def add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="picture, or MP4 film")
    parser.add_argument("--trust", metavar="PEM", help="certificates of the CAs whose signers are believed")
    parser.add_argument("--json", action="store_true", help="print all that was found, as a JSON list")
    parser.set_defaults(run=run_verify)


def run_verify(options: argparse.Namespace) -> None:
    from fusionray.safety.verify_files import verify_files

    verify_files(options.files, trust=options.trust, as_json=options.json)


def add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", help="bundle folder, or models:/name@alias")
    parser.add_argument("--host", help="address to listen on (127.0.0.1); beyond loopback it wants a key")
    parser.add_argument("--port", type=int, help="port to listen on (8000)")
    add_common(parser)
    parser.set_defaults(run=run_serve)


def run_serve(options: argparse.Namespace) -> None:
    root = find_serve_root()
    sys.path.insert(0, str(root))
    from ray import serve as ray_serve

    import serve.app
    from fusionray.ops.cluster import cluster
    from serve.settings import load_service

    places = [f"bundle={options.bundle}"] if options.bundle else []
    service = load_service(options.config, [*options.overrides, *places], options.host, options.port)
    with cluster(options.address, python_path=[root, root / "platform"]):
        # Before the service starts: a signal during the start ends it as one after it does.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        serve.app.run(service.config, service.host, service.port, blocking=False)
        served = ", ".join(model.bundle for model in service.config.models)
        print(f"serving {served} on http://{service.host}:{service.port}; stop with Ctrl-C", flush=True)
        if service.config.signing.certificate is None:
            print(TEST_KEY_NOTE, file=sys.stderr, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
        # What is being answered is finished first; a shutdown alone would cut it off.
        ray_serve.delete(serve.app.APP_NAME)
        ray_serve.shutdown()


def add_keys(parser: argparse.ArgumentParser) -> None:
    acts = parser.add_subparsers(dest="act", required=True, metavar="ACT")
    add = acts.add_parser("add", help="make a key and print it, this once; the file keeps its digest")
    for act in (add, acts.add_parser("remove", help="take a key out of the file; the service follows within a second")):
        act.add_argument("name", metavar="NAME", help="whose key it is")
    listing = acts.add_parser("list", help="say what each key is good for")
    for act in (add, acts.choices["remove"], listing):
        act.add_argument("--file", required=True, metavar="FILE", help="YAML file of keys (keys.file of the service)")
    add.add_argument("--expires", metavar="DATE", help="refuse the key from then on: 2027-01-31, or with time and zone")
    add.add_argument("--requests-per-minute", type=int, metavar="N", help="answer more requests 429")
    add.add_argument("--images-per-day", type=int, metavar="N", help="answer more images 429, until midnight UTC")
    add.add_argument("--models", metavar="A,B", help="models that the key may use; all if left out")
    parser.set_defaults(run=run_keys)


def run_keys(options: argparse.Namespace) -> None:
    sys.path.insert(0, str(find_serve_root()))
    from serve.keys import add_key, describe, read_keys, remove_key

    file = Path(options.file)
    if options.act == "list":
        print("\n".join(describe(key) for key in read_keys(file)) or f"{file}: holds no keys")
    elif options.act == "remove":
        remove_key(file, options.name)
        print(f"{file}: {options.name} is removed", file=sys.stderr)
    else:
        limits = {"requests_per_minute": options.requests_per_minute, "images_per_day": options.images_per_day}
        models = tuple(options.models.split(",")) if options.models else None
        print(add_key(file, options.name, expires=options.expires, models=models, **limits))
        print(f"{file}: {options.name} is added; the key above is shown this once", file=sys.stderr)


def add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", choices=BENCHES, help=f"what to measure: {', '.join(BENCHES)}")
    parser.add_argument("--output", metavar="DIR", required=True, help="folder of figures.json, report.md and pictures")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON in place of the table")
    parser.add_argument("--engine-only", action="store_true", help="train: leave out what needs Ray, installed or not")
    add_common(parser)
    parser.set_defaults(run=run_bench)


def run_bench(options: argparse.Namespace) -> None:
    overrides = [*options.overrides, f"output={options.output}"]
    if options.name == "recovery":
        from fusionray.benchmarks.recovery import RecoveryBenchConfig, bench_recovery

        recovery = load_config(RecoveryBenchConfig, file=options.config, overrides=overrides)
        result = bench_recovery(recovery, address=options.address)
    elif options.name == "serve":
        from fusionray.benchmarks.serve.config import ServeBenchConfig
        from fusionray.benchmarks.serve.run import bench_serve

        result = bench_serve(load_config(ServeBenchConfig, file=options.config, overrides=overrides), find_serve_root())
    else:
        from fusionray.benchmarks.subject import TrainBenchConfig
        from fusionray.benchmarks.train import bench_train

        config = load_config(TrainBenchConfig, file=options.config, overrides=overrides)
        result = bench_train(config, address=options.address, engine_only=options.engine_only)
    print(result.figures.model_dump_json(indent=1) if options.json else result.table)


def find_serve_root() -> Path:
    """Find the checkout that holds `serve/app.py`: around this package, or the working folder.

    Raises: InputMissing where only the wheel is installed.
    """
    for root in (Path(__file__).resolve().parents[2], Path.cwd()):
        if (root / "serve" / "app.py").is_file():
            return root
    raise InputMissing("serve/app.py is not part of the installed package; run this in a checkout of the repository")


if __name__ == "__main__":
    raise SystemExit(main())
