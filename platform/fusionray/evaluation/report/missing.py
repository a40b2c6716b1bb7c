"""Explain in the report why a metric of the table was not measured.

The reasons belong to the evaluation of face fusion, whose metrics goals.yaml lists.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from fusionray.evaluation.report.goals import Table

LANDMARK_KEYS = ("landmark_distance", "face_not_found")


@dataclass(frozen=True)
class MissingContext:
    """What an evaluation had to measure with.

    `synthetic`: the shards hold synthetic faces, whose true fusion is known. `with_reader`: an attribute reader was
    loaded. `with_features`: a feature network was given in a file. `landmarks`: reason why the face mesh is missing,
    empty if it was loaded. `num_clips`: number of video clips.
    """

    synthetic: bool
    with_reader: bool
    with_features: bool
    landmarks: str
    num_clips: int


def explain_missing(table: Table, measured: Container[str], found: MissingContext) -> dict[str, str]:
    """Return a reason in words for every key of `table` that is not in `measured`."""
    return {key: explain(key, table.keys[key].theme, found) for key in table.keys if key not in measured}


def explain(key: str, theme: str, found: MissingContext) -> str:
    """Return the reason for one key that was not measured. `theme`: the key's section of the table, as in goals.yaml.

    Several reasons may apply; the first one in the list is returned.
    """
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
