"""The verb that measures: bench."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fusionray.commands.parser import Parser, Verbs, add_settings, add_verb, set_run
from fusionray.config import load_config

if TYPE_CHECKING:
    from fusionray.benchmarks.results import BenchResult


def add_bench(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "bench",
        "Measure the speed of starts, training, recovery and serving.",
        arguments="{start,train,recovery,serve} --output DIR ...",
        examples=[("fusionray bench train --output runs/bench", "the training engine beside plain loops")],
    )
    benches = parser.add_verbs("bench", metavar="BENCH", title="benchmarks")
    add_bench_start(benches)
    add_bench_train(benches)
    add_bench_recovery(benches)
    add_bench_serve(benches)


def add_bench_start(benches: Verbs) -> None:
    parser = add_verb(
        benches,
        "start",
        "Time the help, the first step of a training and the first answer of a service.",
        arguments="--output DIR [options] [KEY=VALUE ...]",
        examples=[("fusionray bench start --output runs/bench-start rounds=3", "three starts of each")],
    )
    add_output(parser)
    add_settings(parser, cluster=False)
    set_run(parser, run_bench_start)


def add_bench_train(benches: Verbs) -> None:
    parser = add_verb(
        benches,
        "train",
        "Compare the training engine with a bare loop, a DataLoader and a plain recipe.",
        arguments="--output DIR [options] [KEY=VALUE ...]",
        examples=[
            ("fusionray bench train --output runs/bench rounds=3", "every key of the table, three rounds"),
            ("fusionray bench train --output runs/bench --engine-only", "without Ray"),
        ],
    )
    add_output(parser)
    parser.add_argument("--engine-only", action="store_true", help="skip the parts that need Ray")
    add_settings(parser)
    set_run(parser, run_bench_train)


def add_bench_recovery(benches: Verbs) -> None:
    parser = add_verb(
        benches,
        "recovery",
        "Kill workers of a run at random moments and time how soon it continues.",
        arguments="--output DIR [options] [KEY=VALUE ...]",
        examples=[("fusionray bench recovery --output runs/bench kills=3", "three kills")],
    )
    add_output(parser)
    add_settings(parser)
    set_run(parser, run_bench_recovery)


def add_bench_serve(benches: Verbs) -> None:
    parser = add_verb(
        benches,
        "serve",
        "Measure the service under load, beside other servers.",
        arguments="--output DIR [options] [KEY=VALUE ...]",
        details="`make bench-competitors` installs the other servers.",
        examples=[
            ("fusionray bench serve --output runs/bench 'parts=[throughput]' bundle=runs/mine/bundle", "one part of it")
        ],
    )
    add_output(parser)
    add_settings(parser, cluster=False)
    set_run(parser, run_bench_serve)


def add_output(parser: Parser) -> None:
    parser.add_argument("--output", metavar="DIR", required=True, help="folder of figures.json, report.md and plots")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of the table")


def run_bench_start(options: argparse.Namespace) -> None:
    from fusionray.benchmarks.cold_start import StartBenchConfig, bench_start

    config = load_config(StartBenchConfig, file=options.config, overrides=list_overrides(options))
    print_result(bench_start(config), options)


def run_bench_train(options: argparse.Namespace) -> None:
    from fusionray.benchmarks.setup import TrainBenchConfig
    from fusionray.benchmarks.train import bench_train

    config = load_config(TrainBenchConfig, file=options.config, overrides=list_overrides(options))
    print_result(bench_train(config, address=options.address, engine_only=options.engine_only), options)


def run_bench_recovery(options: argparse.Namespace) -> None:
    from fusionray.benchmarks.recovery import RecoveryBenchConfig, bench_recovery

    config = load_config(RecoveryBenchConfig, file=options.config, overrides=list_overrides(options))
    print_result(bench_recovery(config, address=options.address), options)


def run_bench_serve(options: argparse.Namespace) -> None:
    from fusionray.benchmarks.serve.config import ServeBenchConfig
    from fusionray.benchmarks.serve.run import bench_serve

    config = load_config(ServeBenchConfig, file=options.config, overrides=list_overrides(options))
    print_result(bench_serve(config), options)


def list_overrides(options: argparse.Namespace) -> list[str]:
    return [*options.overrides, f"output={options.output}"]


def print_result(result: BenchResult, options: argparse.Namespace) -> None:
    print(result.figures.model_dump_json(indent=1) if options.json else result.table)
