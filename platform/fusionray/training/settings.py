"""The configuration of a training run: one tree, stored in the run, in the tracker and in every checkpoint."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fusionray.config import Section
from fusionray.recipes.face_fusion import FaceFusionConfig
from fusionray.recipes.identity import IdentityRecipeConfig
from fusionray.training.schedule import ScheduleConfig

RecipeConfig = Annotated[IdentityRecipeConfig | FaceFusionConfig, Field(discriminator="name")]


class RunConfig(Section):
    """Where a run lives; the same name under the same output goes on where it stopped."""

    name: str = Field("train", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", description="name of the run")
    output: str = Field("runs", description="folder or URI that holds the runs; on a cluster, storage all nodes share")
    seed: int = Field(0, ge=0, description="seed of networks, data order and augmentation")


class DataConfig(Section):
    """What is learned from."""

    shards: str = Field(
        description="folder or URI made by `fusionray prepare`, or synthetic://... to prepare a synthetic world first"
    )
    size: int = Field(64, description="side of the crops, pixels")
    template: str = Field("arcface_128", description="alignment of the crops")
    same_identity_ratio: float = Field(0.2, ge=0, le=1, description="share of pairs of two pictures of one person")
    pool_rows: int = Field(2048, ge=16, description="encoded rows a worker keeps to draw from; more shuffles better")
    decode_threads: int = Field(2, ge=1, description="threads that decode pictures in each worker")
    prefetch_batches: int = Field(4, ge=1, description="decoded batches kept ready in each worker")
    validation_images: int = Field(512, ge=0, description="held-out crops that are evaluated")


class EngineConfig(Section):
    """How the steps are computed."""

    global_batch: int = Field(32, ge=1, description="images a step over all workers")
    accumulate: int = Field(1, ge=1, description="micro-batches a worker adds up before one optimiser step")
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="auto: bf16 where the device computes it")
    clip_norm: float = Field(1.0, gt=0, description="largest gradient norm of a network")
    max_bad_steps: int = Field(50, ge=0, description="non-finite steps in a row that are skipped before giving up")
    average_half_life_images: float = Field(10_000, ge=0, description="half-life of averaged weights, images")
    schedule: ScheduleConfig = ScheduleConfig()


class BudgetConfig(Section):
    """How long a run is and how often it reports."""

    images: int = Field(50_000, ge=1, description="images to learn from, over all workers")
    max_seconds: float | None = Field(None, gt=0, description="stop training after this time even with images left")
    checkpoint_images: int = Field(10_000, ge=1, description="images between two checkpoints")
    log_images: int = Field(1_000, ge=1, description="images between two entries in the tracker")
    preview_images: int = Field(10_000, ge=1, description="images between two previews and evaluations")
    keep_checkpoints: int = Field(2, ge=1, description="checkpoints kept, the newest ones")


class WorkersConfig(Section):
    """The processes that train."""

    num_workers: int = Field(1, ge=1, description="training processes; one a GPU")
    cpus_per_worker: float = Field(1.0, gt=0, description="CPUs that Ray reserves for each")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU each where the cluster has enough")
    threads: int | None = Field(None, ge=1, description="compute threads a worker; default: the node's cores shared")
    max_failures: int = Field(3, ge=0, description="worker failures survived by restarting from the last checkpoint")


class TrackingConfig(Section):
    """MLflow."""

    uri: str | None = Field(None, description="tracking server; default: an SQLite store in run.output")
    experiment: str = Field("fusionray", description="experiment that the run is filed under")


class TrainConfig(Section):
    """Everything that one training run depends on."""

    run: RunConfig = RunConfig()
    data: DataConfig
    recipe: RecipeConfig
    engine: EngineConfig = EngineConfig()
    budget: BudgetConfig = BudgetConfig()
    workers: WorkersConfig = WorkersConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def check_batch(self) -> TrainConfig:
        shares = self.workers.num_workers * self.engine.accumulate
        if self.engine.global_batch % shares:
            raise ValueError(
                f"engine.global_batch={self.engine.global_batch} does not divide into workers.num_workers="
                f"{self.workers.num_workers} x engine.accumulate={self.engine.accumulate} micro-batches"
            )
        return self
