"""The reasons why keys of the table have no value, for the report."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from fusionray.evaluation.report.goals import Table

LANDMARK_KEYS = ("landmark_distance", "face_not_found")


@dataclass(frozen=True)
class MissingContext:
    """The means of an evaluation; `landmarks`: why the face mesh is unavailable, empty if it is available."""

    synthetic: bool
    with_reader: bool
    with_features: bool
    landmarks: str
    num_clips: int


def explain_missing(table: Table, measured: Container[str], found: MissingContext) -> dict[str, str]:
    """Give a reason for every key that was not measured."""
    return {key: explain(key, table.keys[key].theme, found) for key in table.keys if key not in measured}


def explain(key: str, theme: str, found: MissingContext) -> str:
    """Give the reason for one key: the first that applies."""
    elsewhere = "in the features of the file that was given" if found.with_features else "in the evaluator's embeddings"
    reasons = (
        (theme == "motion" and not found.num_clips, "there are no clips (clips.number, clips.files)"),
        (theme == "motion", "recorded clips have no true fusion, or motion that cannot be followed"),
        (key in LANDMARK_KEYS, found.landmarks or "the face mesh finds no face in the targets"),
        (theme == "realism" and ("_judge" in key) == found.with_features, f"measured {elsewhere}"),
        (theme == "evaluator", "no person has two pictures"),
        (not found.synthetic, "photographs have no true fusion and no true attributes"),
        (theme == "attributes" and not found.with_reader, "attributes=null"),
        (theme == "fairness", "there are not two groups with enough pairs"),
        (True, "too few pictures, or a division by zero"),
    )
    return next(reason for applies, reason in reasons if applies)
