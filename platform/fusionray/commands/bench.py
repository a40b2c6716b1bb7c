"""`fusionray bench NAME`: one frame for all benchmarks, which `BENCHMARKS` lists.

Each has a configuration and a function of it, which measures and writes its report into `--output`; the frame prints
the figures, compares them with those of an earlier run, and logs them.
"""

from __future__ import annotations

import argparse
import functools
import signal
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fusionray.commands.parser import Example, Parser, Verbs, add_settings, add_verb, set_run

if TYPE_CHECKING:
    from fusionray.config import Section


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: where its configuration and its function are, as `module:name` under `fusionray.benchmarks`.

    `on_cluster`: it may run on a Ray cluster. `engine_only`: it has parts that need no Ray.
    """

    name: str
    sentence: str
    section: str
    function: str
    example: Example
    details: str = ""
    on_cluster: bool = False
    engine_only: bool = False

    def load_section(self) -> type[Section]:
        """Import the configuration's class."""
        section: type[Section] = load(self.section)
        return section


BENCHMARKS = (
    Benchmark(
        "start",
        "Time the help, the first step of a training and the first answer of a service.",
        "cold_start:StartBenchConfig",
        "cold_start:bench_start",
        ("fusionray bench start --output runs/bench-start rounds=3", "three starts of each"),
    ),
    Benchmark(
        "faces",
        "Time the search for faces in pictures of 2 and 12 megapixels, and count the faces found.",
        "face_search:FaceSearchConfig",
        "face_search:bench_faces",
        ("fusionray bench faces --output runs/bench-faces", "on one CPU thread"),
    ),
    Benchmark(
        "data",
        "Compare the stream of decoded batches with DataLoaders, and with an object store's delays.",
        "setup:DataBenchConfig",
        "train.run:bench_train",
        ("fusionray bench data --output runs/bench-data", "the keys of `bench train` that are about data"),
        on_cluster=True,
    ),
    Benchmark(
        "train",
        "Compare the training engine with a bare loop, a DataLoader and a plain recipe.",
        "setup:TrainBenchConfig",
        "train.run:bench_train",
        ("fusionray bench train --output runs/bench rounds=3 --compare old/figures.json", "and what has changed since"),
        on_cluster=True,
        engine_only=True,
    ),
    Benchmark(
        "recovery",
        "Kill workers of a run at random moments and time how soon it continues.",
        "recovery:RecoveryBenchConfig",
        "recovery:bench_recovery",
        ("fusionray bench recovery --output runs/bench kills=3", "three kills"),
        on_cluster=True,
    ),
    Benchmark(
        "serve",
        "Measure the service under load, and compare it with other servers.",
        "serve.config:ServeBenchConfig",
        "serve.run:bench_serve",
        ("fusionray bench serve --output runs/bench 'parts=[throughput]' bundle=runs/mine/bundle", "one part of it"),
        details="`make bench-competitors` installs the other servers.",
    ),
    Benchmark(
        "video",
        "Measure how fast films are fused, against plain ways, and how steady they are.",
        "video.config:VideoBenchConfig",
        "video.run:bench_video",
        (
            "fusionray bench video --output runs/bench-video bundle=runs/mine/bundle 'clips=[talk.mp4]'",
            "a rendered film and a recorded one",
        ),
    ),
    Benchmark(
        "style",
        "Measure how fast and in how much memory pictures of any size are stylized.",
        "style.config:StyleBenchConfig",
        "style.run:bench_style",
        ("fusionray bench style --output runs/bench-style run=runs/style/first", "the network of a run"),
    ),
    Benchmark(
        "large",
        "Measure the tiles of a picture of 8K and of one that is 30,000 pixels wide.",
        "style.config:LargeBenchConfig",
        "style.run:bench_style",
        ("fusionray bench large --output runs/bench-large 'huge=[30000,600]'", "a row of tiles of the largest width"),
    ),
)


def load(place: str) -> Any:
    """Import `module:name` of the benchmarks."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"fusionray.benchmarks.{module}"), name)


def add_bench(verbs: Verbs) -> None:
    """Register `bench` and its benchmarks as subcommands of `verbs`."""
    parser = add_verb(
        verbs,
        "bench",
        "Measure data, training, serving and more on this machine.",
        arguments=f"{{{','.join(each.name for each in BENCHMARKS)}}} --output DIR ...",
        examples=[("fusionray bench train --output runs/bench", "compare the training engine with plain loops")],
    )
    benchmarks = parser.add_verbs("bench", metavar="BENCH", title="benchmarks")
    for benchmark in BENCHMARKS:
        add_benchmark(benchmarks, benchmark)


def add_benchmark(benchmarks: Verbs, benchmark: Benchmark) -> None:
    """Register one benchmark."""
    parser = add_verb(
        benchmarks,
        benchmark.name,
        benchmark.sentence,
        arguments="--output DIR [options] [KEY=VALUE ...]",
        details=benchmark.details,
        examples=[benchmark.example],
    )
    add_output_options(parser)
    if benchmark.engine_only:
        parser.add_argument("--engine-only", action="store_true", help="skip the parts that need Ray")
    add_settings(parser, cluster=benchmark.on_cluster)
    set_run(parser, ending_cleanly(functools.partial(run_benchmark, benchmark)))


def add_output_options(parser: Parser) -> None:
    """Add what the frame takes for every benchmark."""
    parser.add_argument(
        "--output",
        metavar="DIR",
        required=True,
        help="folder of figures.json, figures.png, report.html, report.md and charts",
    )
    parser.add_argument("--compare", metavar="FILE", help="figures.json of an earlier run, to say what has changed")
    parser.add_argument("--track", metavar="URI", help="MLflow store or server that also gets figures and report")
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


def run_benchmark(benchmark: Benchmark, options: argparse.Namespace) -> None:
    """Run a benchmark; compare, log and print its figures.

    Raises: ConfigInvalid; InputMissing for the file to compare with, before anything is measured; the errors of the
        benchmark.
    """
    from fusionray.benchmarks.comparison import add_comparison, read_figures
    from fusionray.config import load_config

    former = None if options.compare is None else read_figures(options.compare)
    overrides = [*options.overrides, f"output={options.output}"]
    config = load_config(benchmark.load_section(), file=options.config, overrides=overrides)
    named: dict[str, Any] = {"address": options.address} if benchmark.on_cluster else {}
    if benchmark.engine_only:
        named["engine_only"] = options.engine_only
    result = load(benchmark.function)(config, **named)
    if former is not None:
        result = add_comparison(result, former)
    if options.track is not None:
        from fusionray.benchmarks.tracking import track

        track(result, options.track, config)
    print(result.figures.model_dump_json(indent=1) if options.json else result.table)
