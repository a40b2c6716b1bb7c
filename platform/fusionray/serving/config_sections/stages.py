"""Settings of the parts of the service: in how many replicas each runs, and on which hardware."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fusionray.config import Section, in_unit


class StageConfig(Section):
    """Where a part of the service runs, in how many replicas, and on which hardware."""

    num_replicas: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        default="auto", description="Replicas; auto: as many as the load needs, from min_replicas to max_replicas."
    )
    min_replicas: int = Field(
        default=1,
        ge=0,
        description="Replicas that run without load; 0: the first request after a pause waits for a replica to start.",
    )
    max_replicas: int | None = Field(
        default=None,
        ge=1,
        description="Largest number of replicas; null: as many as the CPUs and GPUs of the cluster hold at the start.",
    )
    target_ongoing_requests: float | None = Field(
        default=None,
        gt=0,
        description="Requests inside a replica above which more replicas start; null: 4, or 16 with a GPU.",
        json_schema_extra=in_unit("requests"),
    )
    upscale_delay_seconds: float = Field(
        default=1.0, ge=0, description="Time that load must last before replicas are added."
    )
    downscale_delay_seconds: float = Field(
        default=300.0, ge=0, description="Time without load before replicas are removed."
    )
    cpus: float | None = Field(
        default=None,
        ge=0,
        description="CPUs that Ray reserves for a replica; null: half of a node's (with GPUs: a GPU's share) divided "
        "by the parts with deployments of their own, at most 4.",
    )
    gpus: float | None = Field(
        default=None,
        ge=0,
        description="GPUs that Ray reserves for a replica, 0.25 puts four replicas on one; null: 1 for the part that "
        "runs the generator, if the cluster has GPUs and runtime.providers uses them.",
    )

    @model_validator(mode="after")
    def check_replicas(self) -> StageConfig:
        if self.num_replicas != "auto" and (self.max_replicas is not None or self.min_replicas != 1):
            raise ValueError(
                f"num_replicas {self.num_replicas} is a fixed number; leave it out, or min_replicas and max_replicas"
            )
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            raise ValueError(f"max_replicas {self.max_replicas} is below min_replicas {self.min_replicas}")
        return self


class InlineStageConfig(StageConfig):
    """A part that may run inside the replica of its caller, which saves a network hop and a copy of the pictures."""

    separate_deployment: bool = Field(
        default=False, description="Run in replicas of its own; otherwise it runs inside the replicas of its caller."
    )
    max_ongoing_requests: int = Field(
        default=64, ge=1, description="Requests that a replica works on at once; further ones wait at the caller."
    )


class FaceStageConfig(InlineStageConfig):
    """Decoding, face detection, pasting and encoding; they share the decoded picture, so they run together."""

    threads: int | None = Field(
        default=None,
        ge=1,
        description="Pictures that a replica works on at once; null: its CPUs (or the first four of the machine, if "
        "these are more), fewer while other replicas of the node work; on a GPU one more.",
    )
    remember_seconds: float = Field(
        default=300.0,
        ge=0,
        description="How long the places of the faces in a target are kept, by the hash of the picture, for requests "
        "with other sources; 0: not at all.",
    )


class GeneratorStageConfig(InlineStageConfig):
    """Run the generator, in batches that hold the faces of many requests."""

    max_batch: int | None = Field(
        default=None,
        ge=1,
        description="Faces per batch; null: 8, or 1 on a CPU.",
        json_schema_extra=in_unit("faces"),
    )
    num_streams: int | None = Field(
        default=None,
        ge=1,
        description="Batches computed at the same time; null: 1 on a GPU, up to 4 that share the CPUs.",
        json_schema_extra=in_unit("batches"),
    )
    max_waiting_faces: int = Field(
        default=256, ge=1, description="Faces that may wait in a replica; further ones are answered 503."
    )
