"""The planning stage: predict a training on each number of workers, and write figures and a report."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from fusionray.environment import resolve_location
from fusionray.errors import ConfigInvalid, InputMissing, ShardCorrupt
from fusionray.planning.config import PlanConfig
from fusionray.planning.failures import FailureModel, best_interval, expected_goodput, simulate_goodput
from fusionray.planning.measured import DataCost, MeasuredRun, measure_data, read_run
from fusionray.planning.presets import describe_preset
from fusionray.planning.scaling import StepModel, StepPrediction, fit_model, predict_step
from fusionray.reporting.figures import Figures
from fusionray.training.config import PRESET_PREFIX

# Intervals of the simulation, as multiples of the best one.
SIMULATED = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16, 32)
HOUR = 3600


@dataclass(frozen=True)
class WorkersPlan:
    """What a training on `step.workers` workers takes.

    `interval_seconds`: between checkpoints. `hours`: of the whole training, with failures. `read_bytes` and
    `decode_cores`: all workers together, None if the shards are not here. `single_images_per_second`: of one worker
    with the same batch.
    """

    step: StepPrediction
    single_images_per_second: float
    interval_seconds: float
    goodput: float
    hours: float
    read_bytes: float | None
    decode_cores: float | None
    price: float | None

    @property
    def efficiency(self) -> float:
        """Images/s of a worker over those of one worker alone."""
        return self.step.images_per_second / self.step.workers / self.single_images_per_second


@dataclass(frozen=True)
class SimulatedInterval:
    """Goodput between checkpoints that are so many seconds apart: of the simulation, and by the formula."""

    interval_seconds: float
    simulated: float
    expected: float


@dataclass(frozen=True)
class ClusterPlan:
    """A plan: what it was made from, and what it predicts. `machines`: of the service, None if none was asked for."""

    config: PlanConfig
    run: MeasuredRun
    second_run: MeasuredRun | None
    model: StepModel
    data: DataCost | None
    failures: FailureModel
    workers: list[WorkersPlan]
    simulated: list[SimulatedInterval]
    images: int
    machines: int | None
    machine_rate: float | None


def make_plan(config: PlanConfig) -> ClusterPlan:
    """Read what was measured, and predict from it.

    Raises: CheckpointMissing, InputMissing, ConfigInvalid.
    """
    run = read_start(config)
    second = None if config.second_run is None else read_run(config.second_run)
    if second is not None and second.parameters != run.parameters:
        raise ConfigInvalid(f"second_run: {second.folder} is of another model than {run.folder}; give one of the same")
    runs = [run] if second is None else [run, second]
    model = fit_model(
        tuple(each.local_batch for each in runs),
        tuple(each.compute_seconds for each in runs),
        spread=run.spread,
        exchanged_bytes=run.exchanged_bytes,
        messages=run.messages,
    )
    data = find_data(config, run)
    images = config.images or run.config.budget.images
    plan_size = partial(plan_workers, config, run, model, data=data, images=images)
    failures = build_failure_model(config, run, 1)
    rate = None if config.service.figures is None else read_throughput(config.service.figures)
    wanted = config.service.requests_per_second
    return ClusterPlan(
        config=config,
        run=run,
        second_run=second,
        model=model,
        data=data,
        failures=failures,
        workers=[plan_size(workers) for workers in config.workers],
        simulated=simulate(config, run, model),
        images=images,
        machines=None if wanted is None or rate is None else math.ceil(wanted / (rate * config.service.busy_share)),
        machine_rate=rate,
    )


def read_start(config: PlanConfig) -> MeasuredRun:
    """Read the run, or describe the preset, that the plan starts from; settings replace what it measured.

    Raises: CheckpointMissing, InputMissing, ConfigInvalid.
    """
    rate = config.images_per_second
    is_preset = config.run.startswith(PRESET_PREFIX)
    run = describe_preset(config.run, rate) if is_preset else read_run(config.run)
    return replace(
        run,
        spread=run.spread if config.step_spread is None else config.step_spread,
        compute_seconds=run.compute_seconds if rate is None else run.local_batch / rate,
    )


def find_data(config: PlanConfig, run: MeasuredRun) -> DataCost | None:
    """Measure the shards that the configuration names, else those of the run, if they are here.

    Raises: InputMissing, ShardCorrupt for shards that the configuration names.
    """
    if config.shards is not None:
        return measure_data(config.shards, run.config)
    try:
        return measure_data(run.config.data.shards, run.config)
    except (InputMissing, ShardCorrupt):
        return None


def plan_workers(
    config: PlanConfig, run: MeasuredRun, model: StepModel, workers: int, *, data: DataCost | None, images: int
) -> WorkersPlan:
    """Plan a training on so many workers.

    Raises: ConfigInvalid if the batch has fewer images than there are workers.
    """
    step = predict(config, run, model, workers)
    failures = build_failure_model(config, run, workers)
    interval = config.failures.interval_seconds or best_interval(failures)
    goodput = expected_goodput(failures, interval)
    hours = images / step.images_per_second / goodput / HOUR if goodput else math.inf
    price = config.price_per_worker_hour
    return WorkersPlan(
        step=step,
        single_images_per_second=step.local_batch / model.compute_seconds(step.local_batch),
        interval_seconds=interval,
        goodput=goodput,
        hours=hours,
        read_bytes=None if data is None else data.image_bytes * step.images_per_second,
        decode_cores=None if data is None else data.decode_seconds * step.images_per_second,
        price=None if price is None else price * hours * workers,
    )


def predict(config: PlanConfig, run: MeasuredRun, model: StepModel, workers: int) -> StepPrediction:
    """Predict a step; the batch of each worker is that of the run, unless `global_batch` divides one among them."""
    if config.global_batch is not None and config.global_batch < workers:
        raise ConfigInvalid(f"global_batch={config.global_batch} is less than one image for each of {workers} workers")
    local_batch = run.local_batch if config.global_batch is None else config.global_batch / workers
    return predict_step(model, config.network, workers, config.workers_per_node, local_batch)


def build_failure_model(config: PlanConfig, run: MeasuredRun, workers: int) -> FailureModel:
    """Combine what the run measured of its saves with what the configuration assumes.

    Raises: InputMissing if nobody says what a save costs.
    """
    assumed = config.failures
    stall = run.stall_seconds if assumed.stall_seconds is None else assumed.stall_seconds
    save = run.save_seconds if assumed.save_seconds is None else assumed.save_seconds
    if stall is None or save is None:
        raise InputMissing(
            f"{run.folder}: is the first checkpoint of its run, which has measured no save yet; let the run save twice "
            "(budget.checkpoint_every_images), or set failures.stall_seconds and failures.save_seconds"
        )
    return FailureModel(assumed.worker_hours * HOUR / workers, assumed.restart_seconds, stall, save)


def simulate(config: PlanConfig, run: MeasuredRun, model: StepModel) -> list[SimulatedInterval]:
    """Simulate intervals around the best one."""
    workers = config.simulation.workers
    failures = build_failure_model(config, run, workers)
    # With a fixed batch, there may be more simulated workers than images.
    step = predict(config.model_copy(update={"global_batch": None}), run, model, workers)
    best = best_interval(failures)
    intervals = [best * factor for factor in SIMULATED if best * factor >= step.seconds]
    return [
        SimulatedInterval(
            interval,
            simulate_goodput(
                failures,
                step,
                model.spread,
                interval,
                failures=config.simulation.failures,
                seed=config.simulation.seed,
            ),
            expected_goodput(failures, interval),
        )
        for interval in intervals
    ]


def list_exchange_shares(plan: ClusterPlan) -> list[tuple[float, int, list[float]]]:
    """List the share of the exchange by link: (Gbit/s, workers, [share of this model, of four times its bytes])."""
    config = plan.config
    most = max(config.workers)
    found = []
    for gbits in (25.0, 100.0, 400.0, 3200.0):
        network = config.network.model_copy(update={"between_nodes_gbits_per_second": gbits})
        shares = []
        for times in (1, 4):
            model = replace(plan.model, exchanged_bytes=plan.model.exchanged_bytes * times)
            local_batch = predict(config, plan.run, plan.model, most).local_batch
            shares.append(predict_step(model, network, most, config.workers_per_node, local_batch).exchange_share)
        found.append((gbits, most, shares))
    return found


def read_throughput(location: str) -> float:
    """Read the pictures/s of a machine from the figures of `fusionray bench serve`.

    Raises: InputMissing.
    """
    try:
        figures = Figures.model_validate_json(Path(resolve_location(location)).read_bytes())
        return figures.figures["throughput"].value
    except (OSError, ValidationError, KeyError) as error:
        reason = getattr(error, "strerror", None) or "it holds no throughput of `fusionray bench serve`"
        raise InputMissing(f"service.figures: {location}: cannot be used ({reason})") from None
