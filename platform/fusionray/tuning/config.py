"""The settings of a search."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from fusionray.config import Section
from fusionray.tuning.space import Range


class HalvingConfig(Section):
    """ASHA: trials that lag behind the others at the same image end early."""

    grace_images: int = Field(ge=1, description="images that every trial sees before it can be stopped")
    factor: float = Field(2.0, gt=1, description="one in so many goes on at each rung; rungs lie so far apart")


class PopulationConfig(Section):
    """PBT: the worst members go on from the checkpoints of the best, with settings near theirs."""

    interval_images: int | None = Field(
        None, ge=1, description="images between two comparisons; null: train.budget.validate_every_images"
    )
    quantile: float = Field(0.25, gt=0, le=0.5, description="share of the population that is replaced each time")
    resample: float = Field(0.25, ge=0, le=1, description="chance of a setting to be drawn anew instead of changed")


class TuneConfig(Section):
    """What is searched, how, and for how long."""

    name: str = Field(
        "search", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="name of the search, and of its trials"
    )
    output: str = Field("runs", description="local folder that holds the search, its shards and its encoders")
    seed: int = Field(0, ge=0, description="decides what is proposed; runs are seeded by train.run.seed")
    train: dict[str, Any] = Field(
        description="the training that every trial starts from, as `fusionray train` takes it: preset and settings"
    )
    space: dict[str, Range] = Field(min_length=1, description="dotted keys of the training, and the values to try")
    search: Literal["random", "tpe", "pbt"] = Field(
        "tpe", description="random; tpe: Optuna's estimator of good values; pbt: a population that learns together"
    )
    startup_trials: int = Field(4, ge=1, description="tpe: trials drawn at random before the estimator is asked")
    halving: HalvingConfig | None = Field(None, description="stop trials early (ASHA); null: all see the whole budget")
    population: PopulationConfig = PopulationConfig()
    trials: int = Field(8, ge=2, description="trials in all; the first is the training as it stands")
    at_once: int = Field(1, ge=1, description="trials that train at the same time")
    metric: str = Field("validation_l1_to_truth", description="what is wanted: a metric of the run's evaluation")
    mode: Literal["min", "max"] = Field("min", description="which value of the metric is better")
    max_minutes: float | None = Field(
        None, gt=0, description="the search ends after this time over all of its starts; null: by images alone"
    )
    max_failures: int = Field(1, ge=0, description="times that a trial is started again after an error")
    register_as: str | None = Field(None, description="name under which the best trial's bundle is registered")
    alias: str = Field("candidate", description="registry alias that is moved to it")

    @field_validator("output")
    @classmethod
    def check_output(cls, output: str) -> str:
        if "://" in output:
            raise ValueError("must be a local folder: the report is written there")
        return output

    @field_validator("metric")
    @classmethod
    def check_metric(cls, metric: str) -> str:
        if metric.startswith("loss_"):
            raise ValueError(
                f"{metric} is a training loss, which another loss weight changes; name a metric of the evaluation"
            )
        return metric

    @field_validator("train")
    @classmethod
    def check_train(cls, train: dict[str, Any]) -> dict[str, Any]:
        run = train.get("run") or {}
        for key in ("name", "output"):
            if key in run:
                raise ValueError(f"run.{key} belongs to the search; set {key} beside train")
        return train

    @model_validator(mode="after")
    def check_population(self) -> TuneConfig:
        if self.search != "pbt":
            return self
        if self.halving is not None:
            raise ValueError("halving has no effect on search=pbt, whose members all go on to the end")
        if self.at_once < self.trials:
            raise ValueError(
                f"search=pbt trains its population side by side: at_once={self.at_once} must reach trials={self.trials}"
            )
        return self
