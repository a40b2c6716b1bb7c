"""The settings of `fusionray evaluate`: general ones, and those that only models which fuse faces use."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fusionray.config import Section, in_unit
from fusionray.data.shards import Split
from fusionray.environment import resolve_location
from fusionray.evaluation.metric_table import GoalSet
from fusionray.metrics.feature_network import FeaturesConfig
from fusionray.tracking.store import tracking_uri
from fusionray.training.config import WorkersConfig


class ClipsConfig(Section):
    """The clips on which flicker and warp error are measured."""

    number: int = Field(
        8, ge=0, description="Synthetic clips that are rendered; 0: none.", json_schema_extra=in_unit("clips")
    )
    frames: int = Field(
        16, ge=2, description="Frames of each synthetic clip, and the most frames taken from a video file."
    )
    files: tuple[str, ...] = Field((), description="Video files, or folders of numbered pictures, to evaluate as well.")


class FaceFusionEvalConfig(Section):
    """Settings that only the evaluation of face fusion uses: people, evaluators and clips."""

    people: int = Field(100, ge=2, description="Largest number of people to draw from the split.")
    gallery_images: int = Field(
        4,
        ge=1,
        description="Gallery pictures of each person, averaged into a template; none of them is a source or a target.",
        json_schema_extra=in_unit("pictures"),
    )
    evaluator: str = Field(
        "preset:identity-evaluator",
        description="Encoder that measures identity: a checkpoint or run folder, or preset:NAME to train it first on "
        "the train split of these shards. It must not be the encoder that supervised the model.",
    )
    attributes: str | None = Field(
        "preset:attributes-small",
        description="Model that reads pose, expression and light, named in the same way; null: none, for photographs.",
    )
    features: FeaturesConfig | None = Field(
        None,
        description="Network for FID and KID; null: both are measured in the evaluator's embeddings, as fid_embedding "
        "and kid_embedding.",
    )
    compare_size: int | None = Field(
        None,
        ge=32,
        description="Side to which pictures are reduced before identity, similarity and attributes are measured, to "
        "compare a model with a smaller one; null: as the model makes them.",
        json_schema_extra=in_unit("px"),
    )
    clips: ClipsConfig = ClipsConfig()


class EvaluateConfig(Section):
    """Which model is evaluated, on which pictures, and where the report goes."""

    listed_by: ClassVar[str] = "fusionray evaluate --settings"

    model: str = Field(
        description="Model to evaluate: a bundle folder, models:/name@alias, or a checkpoint or run folder."
    )
    data: str = Field(description="Folder or URI that `fusionray prepare` wrote.")
    output: str = Field(description="Folder or URI for figures.json, report.html, report.md and pairs.csv.")
    split: Split = Field(
        "test",
        description="Split to evaluate on; no model is trained on the test split, and no setting is chosen by it.",
    )
    pairs: int = Field(
        500,
        ge=2,
        description="Pairs of different people to fuse; for a model of pictures, draws of its inputs.",
    )
    seed: int = Field(
        0, ge=0, description="Seed of the drawn people and pairs; the same seed and shards give the same pairs."
    )
    evaluator: str | None = Field(
        None,
        description="Network that scores a model of pictures without a reference output: a checkpoint or run folder, "
        "or preset:NAME to train it first on the train split of these shards; null: the one that its recipe names. "
        "Face fusion has its own, face_fusion.evaluator.",
    )
    baseline: str | None = Field(
        None,
        description="Another model of pictures, named as `model` is, whose outputs for the same pictures are scored "
        "beside, with the suffix _baseline; null: none.",
    )
    face_fusion: FaceFusionEvalConfig = FaceFusionEvalConfig()
    goals: GoalSet = Field(
        "none",
        description="Goals to compare the figures with: of paired or of unpaired training on rendered people, of "
        "photographs, or none.",
    )
    bootstrap_rounds: int = Field(
        1000,
        ge=0,
        description="Bootstrap resamplings for each confidence interval; 0: no intervals.",
        json_schema_extra=in_unit("rounds"),
    )
    batch_size: int = Field(
        32, ge=1, description="Pairs that a worker fuses at once.", json_schema_extra=in_unit("pairs")
    )
    workers: WorkersConfig = WorkersConfig()
    runs: str | None = Field(
        None,
        description="Folder of the training runs of evaluator and attributes model, and of their tracker; null: "
        "output.",
    )
    tracking_uri: str | None = Field(None, description="MLflow store; null: an SQLite store in `runs`.")
    experiment: str = Field("fusionray", description="MLflow experiment of the evaluation.")

    def choose_tracker(self) -> str:
        """Return the URI of the MLflow store.

        Raises: ValueError if none is named, and the runs are not in a local folder.
        """
        place = "output" if self.runs is None else "runs"
        folder = resolve_location(self.runs or self.output)
        return tracking_uri(self.tracking_uri, folder, setting="tracking_uri", place=place)
