"""The verb that plans a larger cluster: plan."""

from __future__ import annotations

import argparse

from fusionray.commands.parser import Verbs, add_settings, add_verb, set_run


def add_plan(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "plan",
        "Predict time, price and needs of a training on more workers.",
        arguments="RUN --output DIR [options] [KEY=VALUE ...]",
        details="The prediction starts from the times that a run on one machine measured; every assumption is printed.",
        examples=[
            ("fusionray plan runs/mine/first --output runs/plan 'workers=[1,8,32]'", "three sizes of a cluster"),
            (
                "fusionray plan runs/mine/first --output runs/plan second_run=runs/mine/half price_per_worker_hour=2.5",
                "from two batch sizes, with prices",
            ),
        ],
    )
    parser.add_argument("measured", metavar="RUN", help="run or checkpoint whose measured times the plan starts from")
    parser.add_argument(
        "--output", metavar="DIR", required=True, help="folder of figures.json, report.html and report.md"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of the table")
    add_settings(parser, cluster=False)
    set_run(parser, run_plan)


def run_plan(options: argparse.Namespace) -> None:
    from fusionray.config import load_config
    from fusionray.planning.config import PlanConfig
    from fusionray.planning.report import plan

    places = [f"run={options.measured}", f"output={options.output}"]
    config = load_config(PlanConfig, file=options.config, overrides=[*options.overrides, *places])
    result = plan(config)
    print(result.figures.model_dump_json(indent=1) if options.json else result.text)
