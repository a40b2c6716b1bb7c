"""Settings of the films that jobs make."""

from __future__ import annotations

from pydantic import Field

from fusionray.config import Section, in_unit


class VideoConfig(Section):
    """How films are made, and with what hardware; `limits` has the limits of one film."""

    cpus: float | None = Field(
        default=None,
        gt=0,
        description="CPUs that Ray reserves for the task of a film; null: half of a node's, at most 4.",
    )
    gpus: float = Field(default=0.0, ge=0, description="GPUs that Ray reserves for the task of a film.")
    parallel_jobs: int = Field(
        default=1, ge=1, description="Films that a replica has made at once, each by a task of its own."
    )
    segment_seconds: float = Field(
        default=10.0,
        gt=0,
        description="Shortest part of a film that is worked on, and lost if its process dies, as a whole.",
    )
    encoder: str = Field(default="libx264", description="FFmpeg's name of the encoder.")
    quality: float | None = Field(
        default=None,
        description="Quality of the encoder, its crf or cq: lower is better; null: its own.",
        json_schema_extra=in_unit(""),
    )
    preset: str | None = Field(default=None, description="Preset of the encoder, such as fast; null: its own.")
    policy_seconds: float = Field(
        default=0.5,
        ge=0,
        description="Time between two frames of a film of which the target policy is asked; 0: it is asked of each.",
    )
