"""The output of a plan: figures.json, report.html and report.md, and the printed table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fusionray.environment import resolve_location
from fusionray.planning.config import PlanConfig
from fusionray.planning.plan import ClusterPlan, WorkersPlan, list_exchange_shares, make_plan
from fusionray.planning.published import check_published
from fusionray.reporting.charts import ChartLine, draw_lines
from fusionray.reporting.figures import Figures, MeasuredFigure, write_figures
from fusionray.reporting.page import Page, PageSection, PageTable, save_page
from fusionray.reporting.parts import Chart

HEAD = (
    "workers",
    "images a step",
    "step, ms",
    "images/s",
    "efficiency",
    "exchange",
    "slowest",
    "checkpoint every",
    "goodput",
    "time",
    "price",
    "read, MB/s",
    "decoding, cores",
)
MEGABYTE = 1e6


@dataclass(frozen=True)
class PlanResult:
    """The figures, and the printed text."""

    figures: Figures
    text: str


def plan(config: PlanConfig) -> PlanResult:
    """Plan, and write figures and report into the output folder.

    Raises: CheckpointMissing, InputMissing, ConfigInvalid.
    """
    made = make_plan(config)
    folder = Path(resolve_location(config.output))
    folder.mkdir(parents=True, exist_ok=True)
    figures = write_figures(folder, "plan", list_figures(made))
    save_page(folder, build_page(made, figures))
    return PlanResult(figures, write_text(made))


def list_figures(plan: ClusterPlan) -> dict[str, MeasuredFigure]:
    """List the predictions as figures, by the number of workers."""
    found: dict[str, MeasuredFigure] = {}
    for each in plan.workers:
        values = {
            "images_per_second": (each.step.images_per_second, "images/s"),
            "efficiency": (each.efficiency, "share"),
            "exchange_share": (each.step.exchange_share, "share"),
            "checkpoint_seconds": (each.interval_seconds, "s"),
            "goodput": (each.goodput, "share"),
            "hours": (each.hours, "h"),
        }
        # JSON has no number for a training that never ends.
        found |= {
            f"{name}_{each.step.workers}": MeasuredFigure(value=value, unit=unit)
            for name, (value, unit) in values.items()
            if math.isfinite(value)
        }
    if plan.machines is not None:
        found["service_machines"] = MeasuredFigure(value=plan.machines, unit="machines")
    return found


def list_rows(plan: ClusterPlan) -> list[tuple[str, ...]]:
    """List the table, a row for each number of workers."""
    return [list_row(each) for each in plan.workers]


def list_row(each: WorkersPlan) -> tuple[str, ...]:
    step = each.step
    return (
        str(step.workers),
        f"{step.workers * step.local_batch:g}",
        f"{1000 * step.seconds:.1f}",
        f"{step.images_per_second:,.0f}",
        f"{each.efficiency:.2f}",
        f"{step.exchange_share:.1%}",
        f"{step.waiting_seconds / step.seconds:.1%}",
        describe_time(each.interval_seconds),
        f"{each.goodput:.3%}",
        describe_time(3600 * each.hours),
        "-" if each.price is None else f"{each.price:,.2f}",
        "-" if each.read_bytes is None else f"{each.read_bytes / MEGABYTE:.1f}",
        "-" if each.decode_cores is None else f"{each.decode_cores:.1f}",
    )


def describe_time(seconds: float) -> str:
    """Write a time in its fitting unit."""
    if not math.isfinite(seconds):
        return "never"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def write_text(plan: ClusterPlan) -> str:
    """Write the table and all assumptions for a terminal."""
    rows = [HEAD, *list_rows(plan)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([*table, "", *describe_service(plan), *describe_basis(plan)])


def describe_service(plan: ClusterPlan) -> list[str]:
    """Say how many machines the service needs, if it was asked for."""
    wanted = plan.config.service.requests_per_second
    if wanted is None:
        return []
    if plan.machines is None:
        return ["service: not planned; set service.figures to the figures.json of `fusionray bench serve`"]
    return [
        f"service: {plan.machines} machine(s) for {wanted:g} pictures/s: each made {plan.machine_rate:.3g} when "
        f"measured, and is used at {plan.config.service.busy_share:.0%} of that"
    ]


def describe_basis(plan: ClusterPlan) -> list[str]:
    """Say what was measured, and what is assumed."""
    return [*describe_measured(plan), *describe_assumed(plan)]


def describe_measured(plan: ClusterPlan) -> list[str]:
    run, data, failures = plan.run, plan.data, plan.failures
    runs = [run] if plan.second_run is None else [run, plan.second_run]
    steps = "; ".join(
        f"{each.local_batch:g} images on each of {each.num_workers} worker(s), {1000 * each.compute_seconds:.1f} ms of "
        f"work ({each.folder})"
        for each in runs
    )
    alone = "" if len(runs) > 1 else " (assumed: only a second run with another batch would tell)"
    reading = (
        "not here, so reading and decoding are not planned"
        if data is None
        else f"{data.image_bytes:,.0f} bytes read and {1000 * data.decode_seconds:.3f} core-ms to decode an image"
    )
    return [
        f"measured: a step of {steps}; steps differ by {run.spread:.1%}",
        f"fixed: {1000 * plan.model.fixed_seconds:.1f} ms of a step do not shrink with the batch{alone}",
        f"exchange: {run.parameters / 1e6:.1f} M values, {run.exchanged_bytes / MEGABYTE:.1f} MB a step",
        f"checkpoint: {run.checkpoint_bytes / MEGABYTE:.1f} MB, holds training up for {failures.stall_seconds:.2f} s, "
        f"whole after {failures.save_seconds:.1f} s",
        f"shards: {reading}",
    ]


def describe_assumed(plan: ClusterPlan) -> list[str]:
    config, network, failures = plan.config, plan.config.network, plan.config.failures
    return [
        f"assumed: {config.workers_per_node} workers a node, {network.node_gbytes_per_second:g} GB/s inside, "
        f"{network.between_nodes_gbits_per_second:g} Gbit/s between nodes, {network.latency_microseconds:g} us a "
        f"message, {network.overlap:.0%} of the exchange hidden",
        f"assumed: a failure every {failures.worker_hours:,.0f} hours of a worker, {failures.restart_seconds:g} s to "
        "restart; storage and CPUs keep up",
        f"planned: {plan.images:,} images",
    ]


def build_page(plan: ClusterPlan, figures: Figures) -> Page:
    """Build the page: scaling, goodput, tables, and the basis of both."""
    return Page(
        "Plan",
        lead="; ".join(describe_service(plan)),
        sections=[
            PageSection("Scaling and failures", [draw_scaling(plan), draw_goodput(plan)], columns=True),
        ],
        tables=[
            PageTable("by number of workers", HEAD, list_rows(plan), note=NOTE),
            PageTable(
                "share of the exchange",
                ("between nodes, Gbit/s", "workers", "this model", "four times the parameters, as much work"),
                [
                    (f"{gbits:g}", str(workers), *(f"{share:.1%}" for share in shares))
                    for gbits, workers, shares in list_exchange_shares(plan)
                ],
            ),
            PageTable(
                "simulated goodput", ("seconds between checkpoints", "simulated", "formula"), list_simulated(plan)
            ),
            PageTable(
                "the same model of a step on published times",
                ("training", "GPUs", "measured, s", "predicted, s", "error", "from"),
                list_published(),
                note="Below zero, the prediction is too hopeful. One batch size says nothing of the part of a step "
                "that does not shrink with the batch; give a second run.",
            ),
        ],
        origin=f"{figures.machine}; fusionray {figures.code_version}.",
        notes=describe_basis(plan),
    )


NOTE = (
    "Efficiency: images/s of a worker over those of one alone. Exchange: share of the step in which gradients are "
    "exchanged and nothing is computed. Slowest: share in which workers wait for the slowest. Goodput: share of the "
    "time that ends up in the result."
)


def draw_scaling(plan: ClusterPlan) -> Chart:
    """Draw images/s by workers beside what no losses would give."""
    points = [(float(each.step.workers), each.step.images_per_second) for each in plan.workers]
    ideal = [(float(each.step.workers), each.step.workers * each.single_images_per_second) for each in plan.workers]
    lines = [
        ChartLine(points, "predicted", with_dots=True),
        ChartLine(ideal, "without any loss", "second", dotted=True),
    ]
    drawing = draw_lines(lines, title="images/s by workers", x_label="workers", y_label="images/s")
    return Chart("scaling", "Images/s", drawing)


def draw_goodput(plan: ClusterPlan) -> Chart:
    """Draw the simulated goodput by the time between checkpoints, and the formula."""
    simulated = [(each.interval_seconds, each.simulated) for each in plan.simulated]
    expected = [(each.interval_seconds, each.expected) for each in plan.simulated]
    lines = [
        ChartLine(simulated, "simulated", with_dots=True),
        ChartLine(expected, "first-order formula", "second", dotted=True),
    ]
    title = f"goodput of {plan.config.simulation.workers} workers by seconds between checkpoints"
    drawing = draw_lines(lines, title=title, x_label="seconds between checkpoints", y_label="goodput", log_x=True)
    return Chart("goodput", f"Goodput of {plan.config.simulation.workers} workers", drawing)


def list_simulated(plan: ClusterPlan) -> Sequence[tuple[str, ...]]:
    return [
        (f"{each.interval_seconds:.1f}", f"{each.simulated:.4f}", f"{each.expected:.4f}") for each in plan.simulated
    ]


def list_published() -> Sequence[tuple[str, ...]]:
    return [
        (
            check.name,
            str(check.workers),
            f"{check.measured_seconds:.3f}",
            f"{check.predicted_seconds:.3f}",
            f"{check.error:+.1%}",
            check.origin,
        )
        for check in check_published()
    ]
