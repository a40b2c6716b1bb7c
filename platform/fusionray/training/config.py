"""The configuration of a training run: one tree, stored in the run, in the tracker and in every checkpoint."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, SerializeAsAny, model_validator

from fusionray.config import Section
from fusionray.recipes.family import DataFacts, RecipeConfig, RecipeFamily
from fusionray.recipes.registry import find_family, list_families, parse_recipe
from fusionray.training.engine.schedule import ScheduleConfig

# What may stand in place of a path: a preset that is trained first, a world that is rendered first.
PRESET_PREFIX = "preset:"
SYNTHETIC_PREFIX = "synthetic://"


class RunConfig(Section):
    """Where a run lives; the same name under the same output goes on where it stopped."""

    name: str = Field("train", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", description="name of the run")
    output: str = Field("runs", description="folder or URI that holds the runs; on a cluster, storage all nodes share")
    seed: int = Field(0, ge=0, description="seed of networks, data order and augmentation")
    start_from: str | None = Field(
        None, description="checkpoint or run folder whose networks a new run begins with, e.g. to fine-tune them"
    )


class DataConfig(Section):
    """What is learned from."""

    shards: str = Field(
        description="folder or URI made by `fusionray prepare`, or synthetic://... to prepare a synthetic world first"
    )
    size: int = Field(64, description="side of the crops, pixels")
    template: str = Field("arcface_128", description="alignment of the crops; pictures have none")
    same_identity_ratio: float = Field(0.2, ge=0, le=1, description="share of pairs of two pictures of one person")
    shuffle_buffer_rows: int = Field(
        2048, ge=16, description="encoded rows a worker keeps to draw from; more shuffles better"
    )
    decode_threads: int | None = Field(
        None, ge=1, description="threads that decode pictures in each worker; default: by hardware profile"
    )
    prefetch_batches: int = Field(4, ge=1, description="decoded batches kept ready in each worker")
    timeout_seconds: float = Field(120.0, gt=0, description="longest wait for rows before the storage is given up")
    max_damaged_files: int = Field(
        2, ge=0, description="files that each worker may find damaged in mid-run; others' rows stand in for theirs"
    )
    validation_images: int = Field(512, ge=0, description="held-out crops that are evaluated")


class ParallelConfig(Section):
    """How several workers share one model."""

    strategy: Literal["auto", "ddp", "zero", "fsdp"] = Field(
        "auto", description="ddp: all whole; zero: optimiser state sharded; fsdp: parameters sharded; auto: by size"
    )
    compression: Literal["none", "fp16", "bf16", "powersgd"] = Field("none", description="of exchanged gradients")
    powersgd_rank: int = Field(4, ge=1, description="rank of the PowerSGD approximation")
    overlap: Literal["auto"] | bool = Field(
        "auto", description="exchange gradients during the backward pass; auto: on GPUs, where it has its own units"
    )
    bucket_megabytes: float = Field(25.0, gt=0, description="gradients that are exchanged together")
    static_graph: bool = Field(
        False, description="promise that steps are alike; needs overlap and a share that is computed at once"
    )
    shard_from_parameters: int = Field(
        5_000_000,
        ge=0,
        description="networks below this stay whole under fsdp: gathering would cost more than it saves",
    )


class EngineConfig(Section):
    """How the steps are computed. Only `batch_size`, `memory` and what follows may change when a run goes on."""

    global_batch: int | Literal["auto"] = Field(
        32,
        description="images a step over all workers; auto: what fits into all of them at once",
        union_mode="left_to_right",
    )
    clip_norm: float = Field(1.0, gt=0, description="largest gradient norm of a network")
    max_nonfinite_steps: int = Field(
        50, ge=0, description="non-finite steps in a row that are skipped before giving up"
    )
    ema_half_life_images: float = Field(10_000, ge=0, description="half-life of averaged weights, images")
    schedule: ScheduleConfig = ScheduleConfig()
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = Field("auto", description="auto: by hardware profile")
    batch_size: int | Literal["auto"] | None = Field(
        None,
        description="images a worker computes at once, the rest of its share is accumulated; auto: the most that fit",
        union_mode="left_to_right",
    )
    memory_share: float = Field(0.9, gt=0, le=1, description="share of a device's memory that `auto` may fill")
    memory_gib: float | None = Field(
        None, gt=0, description="memory a CPU worker may use; default: its share of what is free"
    )
    channels_last: Literal["auto"] | bool = Field(
        "auto", description="memory format of convolutions; auto: by hardware profile"
    )
    compile: Literal["auto"] | bool = Field("auto", description="torch.compile the networks; auto: by hardware profile")
    recompute: bool = Field(
        False, description="recompute activations of blocks in the backward pass: less memory, more time"
    )
    parallel: ParallelConfig = ParallelConfig()

    @model_validator(mode="after")
    def check_sizes(self) -> EngineConfig:
        for name in ("global_batch", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise ValueError(f"{name}={value} must be at least 1, or auto")
        return self


class BudgetConfig(Section):
    """How long a run is and how often it reports."""

    images: int = Field(50_000, ge=1, description="images to learn from, over all workers")
    max_seconds: float | None = Field(None, gt=0, description="stop training after this time even with images left")
    checkpoint_every_images: int = Field(10_000, ge=1, description="images between two checkpoints")
    log_every_images: int = Field(1_000, ge=1, description="images between two entries in the tracker")
    validate_every_images: int = Field(10_000, ge=1, description="images between two previews and evaluations")
    keep_checkpoints: int = Field(2, ge=1, description="checkpoints kept, the newest ones")
    best_metric: str | None = Field(None, description="also keep the checkpoint that is best in this metric")
    best_mode: Literal["highest", "lowest"] = Field("highest", description="which value of best_metric is best")


class ValidationConfig(Section):
    """Who judges a fusion while it trains; nobody unless asked, and then the encoder that supervises follows alone."""

    judge: str | None = Field(
        None,
        description="encoder that judges held-out pairs at each preview, as `fusionray evaluate` does: a checkpoint or "
        "run folder, or preset:NAME to train it first on these shards; not the one that supervises",
    )
    attributes: str | None = Field(None, description="reader of pose, expression and light, named in the same way")

    @model_validator(mode="after")
    def check_judge(self) -> ValidationConfig:
        if self.attributes is not None and self.judge is None:
            raise ValueError("validation.attributes has no effect without validation.judge")
        return self


class WorkersConfig(Section):
    """The processes that train."""

    num_workers: int = Field(1, ge=1, description="training processes; one a GPU")
    min_workers: int | None = Field(
        None, ge=1, description="go on with so few where nodes are lost, and grow back; default: wait for num_workers"
    )
    cpus_per_worker: float = Field(1.0, gt=0, description="CPUs that Ray reserves for each")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU each where the cluster has enough")
    threads: int | None = Field(None, ge=1, description="compute threads a worker; default: the node's cores shared")
    bind: bool = Field(True, description="bind each worker to the cores next to its GPU, or to its share of the cores")
    max_failures: int = Field(
        3, ge=0, description="failures of workers survived without a new checkpoint between them; 0: none at all"
    )
    standby: bool = Field(
        True,
        description="keep a process in wait for each worker (0.5 GiB), imports done: restarts are quicker",
    )

    @model_validator(mode="after")
    def check_workers(self) -> WorkersConfig:
        if self.min_workers is not None and self.min_workers > self.num_workers:
            raise ValueError(f"min_workers={self.min_workers} is more than num_workers={self.num_workers}")
        return self


class TrackingConfig(Section):
    """MLflow."""

    uri: str | None = Field(None, description="tracking server; default: an SQLite store in run.output")
    experiment: str = Field("fusionray", description="experiment that the run is filed under")
    profile_steps: int = Field(0, ge=0, description="steps that the PyTorch profiler records on rank 0; 0: none")


class TrainConfig(Section):
    """Everything that one training run depends on."""

    run: RunConfig = RunConfig()
    data: DataConfig
    recipe: Annotated[SerializeAsAny[RecipeConfig], PlainValidator(parse_recipe)]
    engine: EngineConfig = EngineConfig()
    budget: BudgetConfig = BudgetConfig()
    validation: ValidationConfig = ValidationConfig()
    workers: WorkersConfig = WorkersConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def family(self) -> RecipeFamily[Any]:
        """Give the family that `recipe.name` names."""
        return find_family(self.recipe.name)

    def state_facts(self, *, num_people: int, synthetic: bool) -> DataFacts:
        """Put what is known of the shards together with what the configuration says of them."""
        return DataFacts(self.data.size, self.data.template, num_people, synthetic)

    @classmethod
    def find_section(cls, field: str, value: Any) -> Any:
        """Find the section of a field; a recipe's is that of its family."""
        if field != "recipe":
            return super().find_section(field, value)
        name = value.get("name") if isinstance(value, dict) else None
        return find_family(name).Config if name in list_families() else RecipeConfig

    @model_validator(mode="after")
    def check_sizes(self) -> TrainConfig:
        self.family.check(self)
        batch, ranks = self.engine.global_batch, self.workers.num_workers
        if isinstance(batch, int) and batch < ranks:
            raise ValueError(f"engine.global_batch={batch} is less than an image for each of {ranks} workers")
        return self
