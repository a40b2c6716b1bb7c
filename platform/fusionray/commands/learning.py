"""The verbs from pictures to an evaluated model: prepare, train, tune, evaluate."""

from __future__ import annotations

import argparse

from fusionray.commands.parser import Verbs, add_settings, add_verb, set_run
from fusionray.config_presets import list_presets
from fusionray.environment import resolve_location

# Steps that `train --profile` records; tracking.profile_steps=N records another number.
PROFILE_STEPS = 5


def add_prepare(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "prepare",
        "Turn pictures into aligned face crops, stored as shards.",
        arguments="INPUT OUTPUT [options] [KEY=VALUE ...]",
        details="A repeated command keeps finished shards and makes the missing ones.",
        examples=[
            ("fusionray prepare FACES runs/mine/shards size=128", "crops of 128 px from FACES/<person>/<picture>"),
            (
                "fusionray prepare synthetic://people=60,images=8 runs/mine/shards size=64 landmarks=exact",
                "a synthetic dataset, without any photographs",
            ),
        ],
    )
    parser.add_argument("input", metavar="INPUT", help="folder, tar or zip of pictures, or synthetic://people=500,...")
    parser.add_argument("output", metavar="OUTPUT", help="folder or URI for the shards")
    add_settings(parser)
    set_run(parser, run_prepare)


def run_prepare(options: argparse.Namespace) -> None:
    from fusionray.config import load_config
    from fusionray.data.prepare import PrepareConfig, prepare
    from fusionray.ray_cluster.connection import cluster

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


def add_train(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "train",
        "Train a model on shards and write checkpoints.",
        arguments="[options] [KEY=VALUE ...]",
        details="The same command resumes an interrupted run from its last checkpoint.",
        examples=[
            ("fusionray train --preset large-512 --dry-run", "memory, costs and one step of a run; needs no shards"),
            (
                "fusionray train --preset tiny-64 --output runs/mine data.shards=runs/mine/shards run.name=first",
                "a small face-fusion model",
            ),
            ("fusionray train --preset tiny-64 --settings engine", "the keys of one section"),
        ],
    )
    parser.add_argument("--preset", metavar="NAME", help=f"start from these settings: {', '.join(list_presets())}")
    parser.add_argument("--output", metavar="DIR", help="folder or URI that holds the runs (run.output)")
    parser.add_argument("--profile", action="store_true", help=f"record {PROFILE_STEPS} steps in profile/ of the run")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print settings, sizes and costs, and take one step; needs neither shards nor Ray",
    )
    add_settings(parser)
    set_run(parser, run_train)


def train_overrides(options: argparse.Namespace) -> list[str]:
    """Turn the options of `train` into overrides; KEY=VALUE of the user wins over `--profile`."""
    places = [f"run.output={options.output}"] if options.output else []
    wishes = [f"tracking.profile_steps={PROFILE_STEPS}"] if options.profile else []
    return [*wishes, *options.overrides, *places]


def run_train(options: argparse.Namespace) -> None:
    overrides = train_overrides(options)
    if options.dry_run:
        from fusionray.training.dry_run.dry_run import dry_run, load_dry_config

        dry_run(load_dry_config(options.config, overrides, options.preset))
        return
    from fusionray.config import load_config
    from fusionray.ray_cluster.connection import cluster
    from fusionray.training.config import TrainConfig

    config = load_config(TrainConfig, file=options.config, overrides=overrides, preset=options.preset)
    with cluster(options.address):
        from fusionray.training.train import train

        result = train(config)
    figures = ", ".join(f"{key} {value:.4g}" for key, value in sorted(result.metrics.items()))
    print(f"{result.checkpoint}: {result.images_seen} images in {result.seconds:.0f} s; {figures}")


def add_tune(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "tune",
        "Search for better training settings.",
        arguments="[options] [KEY=VALUE ...]",
        details="The same command resumes an interrupted search.",
        examples=[
            ("fusionray tune --config jobs/presets/search-64.yaml", "eight trials of the 64 px model"),
            ("fusionray tune --config jobs/presets/search-64.yaml trials=16 --register faces", "more trials"),
        ],
    )
    parser.add_argument("--output", metavar="DIR", help="folder or URI that holds the search (output)")
    parser.add_argument(
        "--register", metavar="NAME", help="register the best trial's bundle in MLflow as NAME (register_as)"
    )
    add_settings(parser)
    set_run(parser, run_tune)


def run_tune(options: argparse.Namespace) -> None:
    from fusionray.config import load_config
    from fusionray.ray_cluster.connection import cluster
    from fusionray.tuning.config import TuneConfig

    wishes = {"output": options.output, "register_as": options.register}
    places = [f"{key}={value}" for key, value in wishes.items() if value]
    config = load_config(TuneConfig, file=options.config, overrides=[*options.overrides, *places])
    with cluster(options.address):
        from fusionray.tuning.driver import tune

        result = tune(config)
    print(result.summary)


def add_evaluate(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "evaluate",
        "Measure a model on people that it was not trained on.",
        arguments="MODEL --data SHARDS --output DIR [options] [KEY=VALUE ...]",
        details="The encoder that measures identity is trained first, unless the setting face_fusion.evaluator names\n"
        "one. It must not be the encoder that supervised the model.",
        examples=[
            (
                "fusionray evaluate runs/mine/bundle --data runs/mine/shards --output runs/mine/evaluation",
                "figures with confidence intervals, and report.html",
            )
        ],
    )
    parser.add_argument("model", metavar="MODEL", help="bundle, models:/name@alias, or checkpoint or run folder")
    parser.add_argument("--data", metavar="SHARDS", required=True, help="folder or URI of shards with a test split")
    parser.add_argument("--output", metavar="DIR", required=True, help="folder or URI for figures.json and report.html")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of the table")
    add_settings(parser)
    set_run(parser, run_evaluate)


def run_evaluate(options: argparse.Namespace) -> None:
    from fusionray.config import load_config
    from fusionray.evaluation.config import EvaluateConfig
    from fusionray.ray_cluster.connection import cluster

    places = [f"model={options.model}", f"data={options.data}", f"output={options.output}"]
    config = load_config(EvaluateConfig, file=options.config, overrides=[*options.overrides, *places])
    with cluster(options.address):
        from fusionray.evaluation.evaluate import evaluate

        result = evaluate(config)
    print(result.figures.model_dump_json(indent=1) if options.json else result.table)
