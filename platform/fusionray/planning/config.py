"""The settings of a plan: what was measured, the cluster that is asked about, and what is assumed of it."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, field_validator

from fusionray.config import Section, in_unit


class NetworkConfig(Section):
    """The links between workers."""

    node_gbytes_per_second: float = Field(
        228.0,
        gt=0,
        description="Bus bandwidth of an all-reduce inside a node: 228 for 8 A100, 460 for 8 H100, 480 for 8 H200 with "
        "NVSwitch; about 20 over PCIe. `fusionray doctor --intensive` measures it.",
        json_schema_extra=in_unit("GB/s"),
    )
    between_nodes_gbits_per_second: float = Field(
        200.0,
        gt=0,
        description="Bandwidth of all network cards of a node together.",
        json_schema_extra=in_unit("Gbit/s"),
    )
    latency_microseconds: float = Field(
        25.0, ge=0, description="Latency of one message between two workers.", json_schema_extra=in_unit("microseconds")
    )
    overlap: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the exchange that the backward pass hides; 0 where CUDA graphs are on, and on CPUs.",
        json_schema_extra=in_unit("share"),
    )


class FailuresConfig(Section):
    """How often workers fail, and what a failure and a checkpoint cost."""

    worker_hours: float = Field(
        50_000.0,
        gt=0,
        description="Hours that one worker runs between two failures. 50,000: 419 interruptions of 16,384 GPUs in 54 "
        "days (The Llama 3 Herd of Models, section 3.3.4).",
        json_schema_extra=in_unit("hours"),
    )
    restart_seconds: float = Field(
        300.0, ge=0, description="From a failure to the next step; minutes where a node must be replaced."
    )
    interval_seconds: float | None = Field(
        None, gt=0, description="Seconds between two checkpoints; null: the best by Young's formula."
    )
    stall_seconds: float | None = Field(
        None, ge=0, description="Seconds for which a checkpoint holds training up; null: as the run measured."
    )
    save_seconds: float | None = Field(
        None,
        ge=0,
        description="Seconds until a checkpoint is whole in storage, beside training; null: as the run measured.",
    )


class ServicePlanConfig(Section):
    """What the service must bear."""

    requests_per_second: float | None = Field(
        None,
        gt=0,
        description="Pictures that the service must fuse in a second; null: no service is planned.",
        json_schema_extra=in_unit("pictures/s"),
    )
    figures: str | None = Field(
        None, description="File figures.json of `fusionray bench serve`, of a machine such as those that will serve."
    )
    busy_share: float = Field(
        0.7,
        gt=0,
        le=1,
        description="Share of its highest rate that a machine should be used at: beyond, waiting times rise steeply.",
        json_schema_extra=in_unit("share"),
    )


class SimulationConfig(Section):
    """The discrete simulation of failures."""

    workers: int = Field(64, ge=1, description="Simulated workers.")
    failures: int = Field(400, ge=10, description="Failures to simulate at each interval.")
    seed: int = Field(0, ge=0, description="Seed of the simulation.")


class PlanConfig(Section):
    """All settings of `fusionray plan`."""

    listed_by: ClassVar[str] = "fusionray plan --settings"

    run: str = Field(
        description="Run or checkpoint whose measured times the plan starts from, or preset:NAME together with "
        "images_per_second."
    )
    second_run: str | None = Field(
        None,
        description="A run of the same model with another batch on each worker: the two say which part of a step does "
        "not shrink with the batch.",
    )
    shards: str | None = Field(
        None, description="Shards that are read to time it; null: those of the run, if they are here."
    )
    output: str = Field(description="Folder of figures.json, report.html and report.md.")
    workers: list[int] = Field([1, 8, 32, 64], min_length=1, description="Numbers of workers (GPUs) to plan for.")
    workers_per_node: int = Field(
        8, ge=1, description="Workers (GPUs) of a node.", json_schema_extra=in_unit("workers")
    )
    images_per_second: float | None = Field(
        None,
        gt=0,
        description="Images/s of one worker, if they were measured elsewhere, for example on a GPU; null: those of the "
        "run.",
        json_schema_extra=in_unit("images/s"),
    )
    step_spread: float | None = Field(
        None,
        ge=0,
        description="Standard deviation of the steps of a worker over their median; null: as the run measured.",
        json_schema_extra=in_unit("share"),
    )
    global_batch: int | None = Field(
        None,
        ge=1,
        description="Images of a step over all workers; null: each worker keeps the batch of the run.",
        json_schema_extra=in_unit("images"),
    )
    images: int | None = Field(None, ge=1, description="Length of the training; null: the budget of the run.")
    price_per_worker_hour: float | None = Field(
        None, ge=0, description="Price of one worker for an hour, in any currency.", json_schema_extra=in_unit("")
    )
    network: NetworkConfig = NetworkConfig()
    failures: FailuresConfig = FailuresConfig()
    service: ServicePlanConfig = ServicePlanConfig()
    simulation: SimulationConfig = SimulationConfig()

    @field_validator("workers")
    @classmethod
    def check_workers(cls, workers: list[int]) -> list[int]:
        if min(workers) < 1:
            raise ValueError("each number must be at least 1")
        return sorted(set(workers))
