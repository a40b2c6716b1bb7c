"""The verb that measures: bench."""

from __future__ import annotations

import argparse

from fusionray.commands.options import add_common
from fusionray.config import load_config

BENCHES = ("train", "recovery", "serve")


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

        result = bench_serve(load_config(ServeBenchConfig, file=options.config, overrides=overrides))
    else:
        from fusionray.benchmarks.setup import TrainBenchConfig
        from fusionray.benchmarks.train import bench_train

        config = load_config(TrainBenchConfig, file=options.config, overrides=overrides)
        result = bench_train(config, address=options.address, engine_only=options.engine_only)
    print(result.figures.model_dump_json(indent=1) if options.json else result.table)
