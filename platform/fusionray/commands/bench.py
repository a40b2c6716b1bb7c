"""`fusionray bench start|faces|train|recovery|serve|video|style`: the parsers of the benchmarks, and what runs them.

Each `add_...` registers a parser. Each `run_...` builds the configuration from the parsed options, runs one benchmark
of `fusionray.benchmarks`, and prints its figures; the benchmark itself writes its report into `--output`.
"""

from __future__ import annotations

import argparse
import functools
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from fusionray.commands.parser import Parser, Verbs, add_settings, add_verb, set_run

if TYPE_CHECKING:
    from fusionray.benchmarks.results import BenchResult


def add_bench(verbs: Verbs) -> None:
    """Register `bench` and its seven benchmarks as subcommands of `verbs`."""
    parser = add_verb(
        verbs,
        "bench",
        "Measure starts, training, recovery, serving, videos, styles.",
        arguments="{start,faces,train,recovery,serve,video,style} --output DIR ...",
        examples=[("fusionray bench train --output runs/bench", "compare the training engine with plain loops")],
    )
    benchmarks = parser.add_verbs("bench", metavar="BENCH", title="benchmarks")
    add_bench_start(benchmarks)
    add_bench_faces(benchmarks)
    add_bench_train(benchmarks)
    add_bench_recovery(benchmarks)
    add_bench_serve(benchmarks)
    add_bench_video(benchmarks)
    add_bench_style(benchmarks)


def add_bench_start(benchmarks: Verbs) -> None:
    """Register `bench start`: the seconds from a command to its first result."""
    parser = add_verb(
        benchmarks,
        "start",
        "Time the help, the first step of a training and the first answer of a service.",
        arguments="--output DIR [options] [KEY=VALUE ...]",
        examples=[("fusionray bench start --output runs/bench-start rounds=3", "three starts of each")],
    )
    add_output_options(parser)
    add_settings(parser, cluster=False)
    set_run(parser, ending_cleanly(run_bench_start))


def add_bench_faces(benchmarks: Verbs) -> None:
    """Register `bench faces`: how fast faces are found in large pictures, and how many of them."""
    parser = add_verb(
        benchmarks,
        "faces",
        "Time the search for faces in pictures of 2 and 12 megapixels, and count the faces found.",
        arguments="--output DIR [options] [KEY=VALUE ...]",
        examples=[("fusionray bench faces --output runs/bench-faces", "on one CPU thread")],
    )
    add_output_options(parser)
    add_settings(parser, cluster=False)
    set_run(parser, ending_cleanly(run_bench_faces))


def add_bench_train(benchmarks: Verbs) -> None:
    """Register `bench train`: the throughput of the training engine and of simpler training loops."""
    parser = add_verb(
        benchmarks,
        "train",
        "Compare the training engine with a bare loop, a DataLoader and a plain recipe.",
        arguments="--output DIR [options] [KEY=VALUE ...]",
        examples=[
            ("fusionray bench train --output runs/bench rounds=3", "every key of the table, three rounds"),
            ("fusionray bench train --output runs/bench --engine-only", "without Ray"),
        ],
    )
    add_output_options(parser)
    parser.add_argument("--engine-only", action="store_true", help="skip the parts that need Ray")
    add_settings(parser)
    set_run(parser, ending_cleanly(run_bench_train))


def add_bench_recovery(benchmarks: Verbs) -> None:
    """Register `bench recovery`: the seconds that a run needs to continue after a worker was killed."""
    parser = add_verb(
        benchmarks,
        "recovery",
        "Kill workers of a run at random moments and time how soon it continues.",
        arguments="--output DIR [options] [KEY=VALUE ...]",
        examples=[("fusionray bench recovery --output runs/bench kills=3", "three kills")],
    )
    add_output_options(parser)
    add_settings(parser)
    set_run(parser, ending_cleanly(run_bench_recovery))


def add_bench_serve(benchmarks: Verbs) -> None:
    """Register `bench serve`: the service and other servers under load."""
    parser = add_verb(
        benchmarks,
        "serve",
        "Measure the service under load, and compare it with other servers.",
        arguments="--output DIR [options] [KEY=VALUE ...]",
        details="`make bench-competitors` installs the other servers.",
        examples=[
            ("fusionray bench serve --output runs/bench 'parts=[throughput]' bundle=runs/mine/bundle", "one part of it")
        ],
    )
    add_output_options(parser)
    add_settings(parser, cluster=False)
    set_run(parser, ending_cleanly(run_bench_serve))


def add_bench_video(benchmarks: Verbs) -> None:
    """Register `bench video`: speed, memory and steadiness of fused films."""
    parser = add_verb(
        benchmarks,
        "video",
        "Measure how fast films are fused, against plain ways, and how steady they are.",
        arguments="--output DIR [options] [KEY=VALUE ...]",
        examples=[
            (
                "fusionray bench video --output runs/bench-video bundle=runs/mine/bundle 'clips=[talk.mp4]'",
                "a rendered film and a recorded one",
            )
        ],
    )
    add_output_options(parser)
    add_settings(parser, cluster=False)
    set_run(parser, ending_cleanly(run_bench_video))


def add_bench_style(benchmarks: Verbs) -> None:
    """Register `bench style`: speed and memory of stylized pictures of any size."""
    parser = add_verb(
        benchmarks,
        "style",
        "Measure how fast and in how much memory pictures of any size are stylized.",
        arguments="--output DIR [options] [KEY=VALUE ...]",
        examples=[("fusionray bench style --output runs/bench-style run=runs/style/first", "the network of a run")],
    )
    add_output_options(parser)
    add_settings(parser, cluster=False)
    set_run(parser, ending_cleanly(run_bench_style))


def add_output_options(parser: Parser) -> None:
    """Add `--output DIR`, which is required, and `--json`."""
    parser.add_argument(
        "--output", metavar="DIR", required=True, help="folder of figures.json, report.html, report.md and charts"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of the table")


def ending_cleanly(run: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
    """Let SIGTERM end a benchmark as Ctrl-C does: its servers and clusters end, too, instead of staying behind."""

    @functools.wraps(run)
    def run_and_end(options: argparse.Namespace) -> None:
        former = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            run(options)
        finally:
            signal.signal(signal.SIGTERM, former)

    return run_and_end


def run_bench_start(options: argparse.Namespace) -> None:
    """Run the benchmark of starts.

    Raises: ConfigInvalid; the errors of `bench_start`.
    """
    from fusionray.benchmarks.cold_start import StartBenchConfig, bench_start
    from fusionray.config import load_config

    config = load_config(StartBenchConfig, file=options.config, overrides=overrides_with_output(options))
    print_figures(bench_start(config), options)


def run_bench_faces(options: argparse.Namespace) -> None:
    """Run the benchmark of face detection.

    Raises: ConfigInvalid; the errors of `bench_faces`.
    """
    from fusionray.benchmarks.face_search import FaceSearchConfig, bench_faces
    from fusionray.config import load_config

    config = load_config(FaceSearchConfig, file=options.config, overrides=overrides_with_output(options))
    print_figures(bench_faces(config), options)


def run_bench_train(options: argparse.Namespace) -> None:
    """Run the benchmark of training; `--engine-only` leaves out the parts that need Ray.

    Raises: ConfigInvalid; the errors of `bench_train`.
    """
    from fusionray.benchmarks.setup import TrainBenchConfig
    from fusionray.benchmarks.train import bench_train
    from fusionray.config import load_config

    config = load_config(TrainBenchConfig, file=options.config, overrides=overrides_with_output(options))
    print_figures(bench_train(config, address=options.address, engine_only=options.engine_only), options)


def run_bench_recovery(options: argparse.Namespace) -> None:
    """Run the benchmark of recovery.

    Raises: ConfigInvalid; the errors of `bench_recovery`.
    """
    from fusionray.benchmarks.recovery import RecoveryBenchConfig, bench_recovery
    from fusionray.config import load_config

    config = load_config(RecoveryBenchConfig, file=options.config, overrides=overrides_with_output(options))
    print_figures(bench_recovery(config, address=options.address), options)


def run_bench_serve(options: argparse.Namespace) -> None:
    """Run the benchmark of serving.

    Raises: ConfigInvalid; the errors of `bench_serve`.
    """
    from fusionray.benchmarks.serve.config import ServeBenchConfig
    from fusionray.benchmarks.serve.run import bench_serve
    from fusionray.config import load_config

    config = load_config(ServeBenchConfig, file=options.config, overrides=overrides_with_output(options))
    print_figures(bench_serve(config), options)


def run_bench_video(options: argparse.Namespace) -> None:
    """Run the benchmark of videos.

    Raises: ConfigInvalid; the errors of `bench_video`.
    """
    from fusionray.benchmarks.video.config import VideoBenchConfig
    from fusionray.benchmarks.video.run import bench_video
    from fusionray.config import load_config

    config = load_config(VideoBenchConfig, file=options.config, overrides=overrides_with_output(options))
    print_figures(bench_video(config), options)


def run_bench_style(options: argparse.Namespace) -> None:
    """Run the benchmark of style transfer.

    Raises: ConfigInvalid; the errors of `bench_style`.
    """
    from fusionray.benchmarks.style.config import StyleBenchConfig
    from fusionray.benchmarks.style.run import bench_style
    from fusionray.config import load_config

    config = load_config(StyleBenchConfig, file=options.config, overrides=overrides_with_output(options))
    print_figures(bench_style(config), options)


def overrides_with_output(options: argparse.Namespace) -> list[str]:
    """Return the KEY=VALUE overrides of the command line, with `output=DIR` last, so that `--output` wins."""
    return [*options.overrides, f"output={options.output}"]


def print_figures(result: BenchResult, options: argparse.Namespace) -> None:
    """Print the figures to stdout, as a table or, with `--json`, as the content of figures.json."""
    print(result.figures.model_dump_json(indent=1) if options.json else result.table)
