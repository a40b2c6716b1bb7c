"""The settings of `fusionray tune`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fusionray.config import Section, in_unit
from fusionray.tuning.space import Range


class AshaConfig(Section):
    """Settings of ASHA, which stops trials that are worse than others after the same number of images."""

    grace_images: int = Field(ge=1, description="Images that every trial trains on before it may be stopped.")
    factor: float = Field(
        2.0,
        gt=1,
        description="Reduction factor of ASHA: one in this many trials continues at each rung, and each rung is this "
        "many times as long.",
        json_schema_extra=in_unit("factor"),
    )


class PopulationConfig(Section):
    """Settings of population-based training: the worst trials continue from checkpoints of the best ones.

    The settings of the best trial are copied and perturbed.
    """

    interval_images: int | None = Field(
        None, ge=1, description="Images between two comparisons; null: train.budget.validate_every_images."
    )
    quantile: float = Field(
        0.25, gt=0, le=0.5, description="Share of the population that is replaced at each comparison."
    )
    resample: float = Field(
        0.25,
        ge=0,
        le=1,
        description="Probability that a setting is drawn anew instead of perturbed.",
        json_schema_extra=in_unit("share"),
    )


class TuneConfig(Section):
    """Settings of a search: what it tries, how it proposes trials, and for how long it runs."""

    listed_by: ClassVar[str] = "fusionray tune --settings"

    name: str = Field(
        "search",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="Name of the search and prefix of its trials: letters, digits, '.', '_' and '-'.",
    )
    output: str = Field(
        "runs",
        description="Folder or URI that holds the search, its shards and its encoders; on a cluster, storage that "
        "every node shares.",
    )
    seed: int = Field(0, ge=0, description="Seed of the proposals; training runs take train.run.seed.")
    train: dict[str, Any] = Field(
        description="Training that every trial starts from: a preset and settings, as `fusionray train --settings` "
        "lists them."
    )
    space: dict[str, Range] = Field(
        min_length=1, description="Search space: dotted keys of the training, each with the values to try."
    )
    search: Literal["random", "tpe", "pbt"] = Field(
        "tpe",
        description="Search algorithm. random: random search; tpe: Optuna's TPE sampler; pbt: population-based "
        "training.",
    )
    startup_trials: int = Field(
        4, ge=1, description="Random trials before the TPE sampler starts; only with search=tpe."
    )
    asha: AshaConfig | None = Field(
        None, description="Stop poor trials early with ASHA; null: every trial trains to the end of its budget."
    )
    population: PopulationConfig = PopulationConfig()
    trials: int = Field(8, ge=2, description="Total number of trials; the first one is the unchanged training.")
    max_concurrent_trials: int = Field(
        1, ge=1, description="Trials that train at the same time.", json_schema_extra=in_unit("trials")
    )
    metric: str = Field(
        "validation_l1_to_truth", description="Metric of the run's validation that decides which trial is best."
    )
    mode: Literal["min", "max"] = Field("min", description="Whether the metric is minimised or maximised.")
    max_minutes: float | None = Field(
        None, gt=0, description="Longest duration of the search, summed over restarts; null: no limit."
    )
    max_failures: int = Field(
        1, ge=0, description="Restarts of a trial after errors.", json_schema_extra=in_unit("restarts")
    )
    register_as: str | None = Field(
        None, description="Name under which the best trial's bundle is registered in MLflow; null: not registered."
    )
    alias: str = Field("candidate", description="Registry alias that is moved to the registered bundle.")

    @field_validator("metric")
    @classmethod
    def check_metric(cls, metric: str) -> str:
        if metric.startswith("loss_"):
            raise ValueError(
                f"{metric} is a training loss, whose value depends on the loss weights; name a validation metric"
            )
        return metric

    @field_validator("train")
    @classmethod
    def check_train(cls, train: dict[str, Any]) -> dict[str, Any]:
        run = train.get("run") or {}
        for key in ("name", "output"):
            if key in run:
                raise ValueError(f"run.{key} belongs to the search; set {key} next to train")
        return train

    @model_validator(mode="after")
    def check_population(self) -> TuneConfig:
        if self.search != "pbt":
            return self
        if self.asha is not None:
            raise ValueError("asha has no effect with search=pbt, whose members all train to the end; remove it")
        if self.max_concurrent_trials < self.trials:
            raise ValueError(
                f"search=pbt trains all members at once: raise max_concurrent_trials={self.max_concurrent_trials} to "
                f"trials={self.trials}"
            )
        return self
