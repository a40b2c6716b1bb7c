"""Limits of one request, and of all requests together."""

from __future__ import annotations

from pydantic import Field

from fusionray.config import Section, in_unit
from fusionray.runtime.config import PixelBoost

# Enough for a picture of 295 px.
LEAST_DECODED_BYTES = 2**20


class LimitConfig(Section):
    """Limits of one request, and of all requests together."""

    max_requests: int = Field(
        default=64, ge=1, description="Requests inside an ingress replica; further ones are answered 503 at once."
    )
    max_body_bytes: int = Field(
        default=32 * 2**20, ge=1024, description="Largest request body; larger ones are answered 413."
    )
    max_job_body_bytes: int = Field(
        default=512 * 2**20,
        ge=1024,
        description="Largest body of a request that starts a job of pictures, each with max_body_bytes at most.",
    )
    upload_bytes: int = Field(
        default=2**28,
        ge=2**20,
        description="Memory for the bodies of requests in a replica; further requests wait, before their bodies are "
        "read, and are answered 503 after body_timeout_seconds.",
        json_schema_extra=in_unit("bytes"),
    )
    max_pixels: int | None = Field(
        default=None,
        ge=1024,
        description="Largest picture; larger ones are answered 413 without being decoded; null: what decoded_bytes "
        "hold, 89 megapixels of a JPEG and 38 to 53 of others in 1 GiB.",
        json_schema_extra=in_unit("pixels"),
    )
    max_video_bytes: int = Field(
        default=2 * 2**30,
        ge=1024,
        description="Largest film that a job takes; larger ones are answered 413. Together with its source and fields, "
        "it is the body of the request.",
    )
    max_video_pixels: int = Field(
        default=9_000_000, ge=1024, description="Largest frame of a film, 4096 x 2160 by default; else 413."
    )
    max_video_frames: int = Field(
        default=108_000,
        ge=1,
        description="Most frames of a film, an hour of 30 a second by default; longer ones are answered 413.",
        json_schema_extra=in_unit("frames"),
    )
    decoded_bytes: int | None = Field(
        default=None,
        ge=LEAST_DECODED_BYTES,
        description="Memory for decoded pictures in a replica; further requests wait until theirs is free; null: a "
        "quarter of what is free when the replica starts, at most 1 GiB.",
        json_schema_extra=in_unit("bytes"),
    )
    max_pixel_boost: PixelBoost = Field(
        default=4,
        description="Largest pixel_boost of a request, 1, 2 or 4; larger ones are taken as this one.",
        json_schema_extra=in_unit("times the model's size"),
    )
    max_batch_targets: int = Field(default=32, ge=1, description="Targets of one batch; jobs take more.")
    max_job_targets: int = Field(default=1000, ge=1, le=9999, description="Targets of one job.")
    max_faces: int = Field(
        default=64, ge=1, description="Faces of one picture that are fused; pictures with more are answered 413."
    )
    request_timeout_seconds: float = Field(
        default=60.0, gt=0, description="Longest duration of a request; longer ones are answered 504."
    )
    body_timeout_seconds: float = Field(
        default=30.0, gt=0, description="Longest upload of a request body; longer ones are answered 408."
    )
    job_body_timeout_seconds: float = Field(
        default=600.0, gt=0, description="Longest upload of the pictures of a job; longer ones are answered 408."
    )
    max_job_uploads: int = Field(
        default=8,
        ge=1,
        description="Jobs that are sent to an ingress replica at once, besides max_requests; further ones are answered "
        "503 at once.",
    )
    max_event_streams: int = Field(
        default=256,
        ge=1,
        description="Streams of the events of jobs in an ingress replica, besides max_requests; further ones are "
        "answered 503 at once.",
    )
