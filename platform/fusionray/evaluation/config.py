"""The settings of an evaluation."""

from __future__ import annotations

from pydantic import Field, field_validator

from fusionray.config import Section
from fusionray.data.shards import Split
from fusionray.evaluation.report.goals import GoalSet
from fusionray.metrics.feature_network import FeaturesConfig
from fusionray.training.config import WorkersConfig


class ClipsConfig(Section):
    """The clips in which flicker is measured."""

    number: int = Field(8, ge=0, description="clips of synthetic people that are rendered; 0: none")
    frames: int = Field(16, ge=2, description="frames of each, and the most that are taken of a file")
    files: tuple[str, ...] = Field((), description="video files, or folders of numbered pictures, to fuse as well")


class EvaluateConfig(Section):
    """What is judged, on which pictures, by whom."""

    model: str = Field(description="bundle folder, models:/name@alias, or checkpoint or run folder")
    data: str = Field(description="folder or URI made by `fusionray prepare`")
    output: str = Field(description="local folder of figures.json, report.html, report.md and pairs.csv")
    split: Split = Field("test", description="people to judge by; nothing was learned from or chosen by those of test")
    pairs: int = Field(500, ge=2, description="pairs of different people that are fused")
    people: int = Field(100, ge=2, description="most people that are drawn from the split")
    enrolled: int = Field(
        4, ge=1, description="pictures of each person that make its template, none of them source or target"
    )
    seed: int = Field(0, ge=0, description="decides people and pairs; equal seeds and shards give equal lists")
    judge: str = Field(
        "preset:identity-judge",
        description="encoder that judges identity: a checkpoint or run folder, or preset:NAME to train it first on the "
        "train split of these shards; must not be the one that supervised the model",
    )
    attributes: str | None = Field(
        "preset:attributes-small",
        description="reader of pose, expression and light, named in the same way; null: none, as for photographs",
    )
    features: FeaturesConfig | None = Field(
        None, description="network for fid and kid; null: they are measured in the judge's embeddings, as fid_judge"
    )
    clips: ClipsConfig = ClipsConfig()
    goals: GoalSet = Field("none", description="goals to hold the model to: those of its way to learn, or none")
    bootstrap_rounds: int = Field(1000, ge=0, description="resamplings behind each interval; 0: no intervals")
    batch: int = Field(32, ge=1, description="pairs that a worker fuses at once")
    workers: WorkersConfig = WorkersConfig()
    runs: str | None = Field(
        None, description="folder of the runs that train judge and reader, and of their tracker; null: the output"
    )
    tracking_uri: str | None = Field(None, description="MLflow store; null: an SQLite store in `runs`")
    experiment: str = Field("fusionray", description="experiment that the evaluation is filed under")

    @field_validator("output")
    @classmethod
    def _local_output(cls, output: str) -> str:
        if "://" in output:
            raise ValueError("must be a local folder: the report goes from there to the tracker")
        return output
