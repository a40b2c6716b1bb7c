"""Explain in the report why a metric of the table was not measured.

The reasons belong to the evaluation of face fusion, whose metrics face_fusion.yaml lists.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from fusionray.evaluation.metric_table import MetricTable

LANDMARK_KEYS = ("landmark_distance", "face_not_found")
RENDERED_SKIN_KEYS = ("skin_difference_truth", "seam_step_truth", "unchanged_skin_share")
SOURCE_SKIN_KEYS = ("skin_difference_source", "seam_step_source")


@dataclass(frozen=True)
class AvailableInputs:
    """The inputs of an evaluation, which determine what it can measure.

    `synthetic`: the shards hold synthetic faces, whose true fusion is known. `with_reader`: an attribute reader was
    loaded. `with_features`: a feature network was given in a file. `landmarks_error`: why the face mesh is unavailable,
    empty if it is available. `num_clips`: number of video clips.
    """

    synthetic: bool
    with_reader: bool
    with_features: bool
    landmarks_error: str
    num_clips: int


def explain_missing_metrics(table: MetricTable, measured: Container[str], available: AvailableInputs) -> dict[str, str]:
    """Return a reason in words for every key of `table` that is not in `measured`."""
    return {key: explain(key, table.metrics[key].theme, available) for key in table.metrics if key not in measured}


def explain(key: str, theme: str, available: AvailableInputs) -> str:
    """Return the reason why one metric was not measured; `theme` is the metric's theme in the table.

    Several reasons may apply; the first one in the list is returned.
    """
    with_features = available.with_features
    elsewhere = "in the features of the given network" if with_features else "in the evaluator's embeddings"
    reasons = (
        (theme == "motion" and not available.num_clips, "there are no clips (face_fusion.clips)"),
        (key.startswith("landmark_acceleration") and bool(available.landmarks_error), available.landmarks_error),
        (
            theme == "motion",
            "recorded clips have no true fusion, or neither their motion nor their face can be tracked",
        ),
        (key in LANDMARK_KEYS, available.landmarks_error or "the face mesh finds no face in the targets"),
        (
            key in SOURCE_SKIN_KEYS,
            "rendered people have a true fusion instead"
            if available.synthetic
            else "the shards do not say where the sources show skin: prepare them with a parser (docs/bundles.md)",
        ),
        (
            theme == "skin" and (available.synthetic or key not in RENDERED_SKIN_KEYS),
            "no face has skin around it, or source and target are alike",
        ),
        (theme == "realism" and ("_embedding" in key) == with_features, f"measured {elsewhere}"),
        (theme == "evaluator", "no person has two pictures"),
        (not available.synthetic, "photographs have no true fusion and no true attributes"),
        (theme == "attributes" and not available.with_reader, "face_fusion.attributes=null"),
        (theme == "fairness", "there are not two groups with enough pairs"),
        (True, "too few pictures, or a division by zero"),
    )
    return next(reason for applies, reason in reasons if applies)
