"""The configuration of a training run: one tree, stored in the run, in the tracker and in every checkpoint."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from fusionray.config import Section, in_unit
from fusionray.recipes.family import DatasetInfo, RecipeFamily
from fusionray.recipes.registry import AnyRecipeConfig, find_family
from fusionray.training.schedule import ScheduleConfig

# Prefixes of values that replace a path: a preset that is trained first, a synthetic dataset that is prepared first.
PRESET_PREFIX = "preset:"
SYNTHETIC_PREFIX = "synthetic://"


class RunConfig(Section):
    """Where a run is stored, and from which weights it starts."""

    name: str = Field(
        "train",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$",
        description="Name of the run: letters, digits, '.', '_' and '-'. The same name under the same output resumes "
        "the run.",
    )
    output: str = Field(
        "runs", description="Folder or URI that holds the runs; on a cluster, storage that every node shares."
    )
    seed: int = Field(0, ge=0, description="Seed of network initialisation, data order and augmentation.")
    start_from: str | None = Field(
        None,
        description="Checkpoint or run folder from which a new run takes its initial weights, for example to "
        "fine-tune them.",
    )


class DataConfig(Section):
    """The data of a run."""

    shards: str = Field(
        description="Folder or URI that `fusionray prepare` wrote, or synthetic://... to prepare a synthetic dataset "
        "first."
    )
    size: int = Field(64, description="Side of the crops; must equal the size that the shards were prepared with.")
    template: str = Field(
        "arcface_128",
        description="Alignment template of the crops; must equal that of the shards. Not used for shards of pictures.",
    )
    same_identity_ratio: float = Field(
        0.2, ge=0, le=1, description="Share of training pairs whose two pictures show the same person."
    )
    shuffle_buffer_rows: int = Field(
        2048,
        ge=16,
        description="Shuffle buffer of each worker: encoded rows to draw from. A larger buffer shuffles better.",
        json_schema_extra=in_unit("rows"),
    )
    decode_threads: int | None = Field(
        None, ge=1, description="Decoding threads per worker; null takes the number of the hardware profile."
    )
    decode: Literal["worker", "nodes"] = Field(
        "worker",
        description="Where training crops are decoded. worker: in the threads of each worker; nodes: by tasks of Ray "
        "Data on the free CPUs of the cluster, first on nodes without GPUs.",
    )
    read_tasks: int | None = Field(
        None,
        ge=1,
        description="Tasks that read shards for each worker at the same time; null: 1 for a local folder, 8 for object "
        "storage, 4 if tasks decode.",
    )
    prefetch_batches: int = Field(4, ge=1, description="Decoded batches that each worker keeps ready.")
    timeout_seconds: float = Field(
        120.0, gt=0, description="Stop with an error if storage delivers no row for this long."
    )
    max_damaged_files: int = Field(
        2,
        ge=0,
        description="Damaged files that each worker may skip from one start to the next; rows of other files replace "
        "their rows.",
    )
    validation_images: int = Field(512, ge=0, description="Held-out crops in each validation.")


class ParallelConfig(Section):
    """How several workers share one model."""

    strategy: Literal["auto", "ddp", "zero", "fsdp"] = Field(
        "auto",
        description="How workers share the model. ddp: full replicas; zero: sharded optimizer state; fsdp: sharded "
        "parameters; auto: by model size.",
    )
    compression: Literal["none", "fp16", "bf16", "powersgd"] = Field(
        "none",
        description="Compression of the gradients that workers exchange: bf16 keeps their range, fp16 more digits for "
        "one more message, powersgd a matrix of low rank.",
    )
    powersgd_rank: int = Field(4, ge=1, description="Rank of the PowerSGD approximation.")
    overlap: Literal["auto"] | bool = Field(
        "auto",
        description="Exchange gradients during the backward pass; auto: only on GPUs, which can communicate while "
        "they compute.",
    )
    bucket_megabytes: float = Field(25.0, gt=0, description="Size of the gradient buckets that are exchanged together.")
    static_graph: bool = Field(
        False,
        description="Promise DDP that every step runs the same graph; needs overlap and no gradient accumulation.",
    )
    shard_from_parameters: int = Field(
        5_000_000,
        ge=0,
        description="Under fsdp, networks with fewer parameters stay unsharded: gathering them would cost more than "
        "it saves.",
        json_schema_extra=in_unit("parameters"),
    )


class EngineConfig(Section):
    """How training steps are computed.

    A resumed run may change parallel, precision, batch_size and the keys below it; the other keys stay fixed.
    """

    global_batch: int | Literal["auto"] = Field(
        32,
        description="Images per step over all workers; auto: as many as fit into all workers at once.",
        json_schema_extra=in_unit("images"),
        union_mode="left_to_right",
    )
    clip_norm: float = Field(
        1.0, gt=0, description="Largest gradient norm of a network; larger gradients are scaled down."
    )
    max_nonfinite_steps: int = Field(
        50, ge=0, description="Consecutive steps with non-finite values that are skipped; one more ends the run."
    )
    ema_half_life_images: float = Field(
        10_000, ge=0, description="Half-life of the moving average (EMA) of the weights."
    )
    schedule: ScheduleConfig = ScheduleConfig()
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = Field(
        "auto", description="Compute precision; auto takes that of the hardware profile."
    )
    batch_size: int | Literal["auto"] | None = Field(
        None,
        description="Images that a worker computes at once; gradients are accumulated over its local batch. auto: "
        "the most that fit; null: the whole local batch.",
        json_schema_extra=in_unit("images"),
        union_mode="left_to_right",
    )
    memory_share: float = Field(0.9, gt=0, le=1, description="Share of a device's memory that `auto` may fill.")
    memory_gib: float | None = Field(
        None, gt=0, description="Memory that a CPU worker may use; null: its share of the free memory."
    )
    channels_last: Literal["auto"] | bool = Field(
        "auto",
        description="Use the channels-last memory format for convolutions; auto takes the choice of the hardware "
        "profile.",
    )
    compile: Literal["auto"] | bool = Field(
        "auto", description="Compile the networks with torch.compile; auto takes the choice of the hardware profile."
    )
    cuda_graphs: Literal["auto"] | bool = Field(
        "auto",
        description="Record the forward and backward passes as CUDA graphs, which one call starts: without, a fast GPU "
        "waits for Python. Workers then exchange gradients after the backward pass. auto: on NVIDIA GPUs, where "
        "nothing speaks against it.",
    )
    activation_checkpointing: bool = Field(
        False,
        description="Activation checkpointing: recompute the activations of blocks in the backward pass, which saves "
        "memory and costs time.",
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
    """How long a run is, and how often it saves and reports."""

    images: int = Field(50_000, ge=1, description="Length of the run: images over all workers.")
    max_seconds: float | None = Field(
        None, gt=0, description="Longest training time; training stops then even if images remain. null: no limit."
    )
    checkpoint_every_images: int = Field(10_000, ge=1, description="Images between two checkpoints.")
    log_every_images: int = Field(1_000, ge=1, description="Images between two entries in the tracker.")
    validate_every_images: int = Field(
        10_000, ge=1, description="Images between two validations, each with a preview picture."
    )
    keep_checkpoints: int = Field(2, ge=1, description="Number of newest checkpoints to keep.")
    best_metric: str | None = Field(
        None,
        description="Metric by which one more checkpoint, the best, is kept: the first one after the best validation; "
        "null keeps only the newest.",
    )
    best_mode: Literal["highest", "lowest"] = Field("highest", description="Which value of best_metric is the best.")


class ValidationConfig(Section):
    """Which models score a run during training.

    Without an evaluator, only the network that supervises the run scores it.
    """

    evaluator: str | None = Field(
        None,
        description="Network that scores held-out pairs at each validation, as `fusionray evaluate` does (an identity "
        "encoder, or for style transfer a picture encoder): a checkpoint or run folder, or preset:NAME to train it "
        "first on these shards. It must not be the one that supervises the run.",
    )
    attributes: str | None = Field(
        None, description="Model that reads pose, expression and light, named in the same way; needs an evaluator."
    )

    @model_validator(mode="after")
    def check_evaluator(self) -> ValidationConfig:
        if self.attributes is not None and self.evaluator is None:
            raise ValueError("validation.attributes has no effect without validation.evaluator")
        return self


class WorkersConfig(Section):
    """The training processes."""

    num_workers: int = Field(1, ge=1, description="Training processes; one per GPU.")
    min_workers: int | None = Field(
        None,
        ge=1,
        description="Fewest workers that may continue when nodes are lost; lost workers return later. null: wait for "
        "num_workers.",
    )
    cpus_per_worker: float = Field(
        1.0, gt=0, description="CPUs that Ray reserves for each worker.", json_schema_extra=in_unit("CPUs")
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Device of each worker; auto: one GPU each if the cluster has enough, else CPUs."
    )
    threads: int | None = Field(
        None, ge=1, description="Compute threads of each worker; null: the cores of the node, divided by its workers."
    )
    bind: bool = Field(True, description="Bind each worker to the cores next to its GPU, or to its share of the cores.")
    max_failures: int = Field(
        3,
        ge=0,
        description="Failures after which the workers restart; at one more, the run ends, unless it has saved a "
        "checkpoint since its last start: then it starts again. 0: the first failure ends it.",
    )
    warm_spares: bool = Field(
        True,
        description="Keep a warm spare process for each worker (0.5 GiB), which makes restarts faster.",
    )

    @model_validator(mode="after")
    def check_workers(self) -> WorkersConfig:
        if self.min_workers is not None and self.min_workers > self.num_workers:
            raise ValueError(f"min_workers={self.min_workers} is more than num_workers={self.num_workers}")
        return self


class TrackingConfig(Section):
    """Where MLflow records a run."""

    uri: str | None = Field(None, description="MLflow tracking server or store; null: an SQLite store in run.output.")
    experiment: str = Field("fusionray", description="MLflow experiment of the run.")
    profile_steps: int = Field(0, ge=0, description="Steps that the PyTorch profiler records on rank 0; 0: none.")


class TrainConfig(Section):
    """All settings of a training run."""

    listed_by: ClassVar[str] = "fusionray train --settings"

    run: RunConfig = RunConfig()
    data: DataConfig
    recipe: AnyRecipeConfig = Field(description="What is trained, and with which losses; recipe.name chooses.")
    engine: EngineConfig = EngineConfig()
    budget: BudgetConfig = BudgetConfig()
    validation: ValidationConfig = ValidationConfig()
    workers: WorkersConfig = WorkersConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def family(self) -> RecipeFamily[Any]:
        """The recipe family of `recipe.name`."""
        return find_family(self.recipe.name)

    def dataset_info(self, *, num_people: int, synthetic: bool, skin_regions: bool = False) -> DatasetInfo:
        """Combine facts of the shards with the data settings."""
        return DatasetInfo(self.data.size, self.data.template, num_people, synthetic, skin_regions)

    @model_validator(mode="after")
    def check_sizes(self) -> TrainConfig:
        self.family.check(self)
        batch, ranks = self.engine.global_batch, self.workers.num_workers
        if isinstance(batch, int) and batch < ranks:
            raise ValueError(f"engine.global_batch={batch} is less than one image for each of {ranks} workers")
        return self
