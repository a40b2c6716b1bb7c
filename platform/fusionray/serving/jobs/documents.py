"""The JSON of jobs, as the OpenAPI document describes it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from fusionray.serving.jobs.films import FilmProgress, FilmStage
from fusionray.serving.jobs.reader import JobState, JobStatus
from fusionray.serving.jobs.webhooks import WebhookState, WebhookStatus
from fusionray.serving.schema import write_time


class WebhookAttemptDocument(BaseModel):
    """An attempt to tell that a job has ended."""

    at: str = Field(description="Time of the attempt, ISO 8601.")
    status: int | None = Field(description="Status of the answer; null: none came.")
    error: str | None = Field(description="Kind of the error, if no answer came.")


class WebhookDocument(BaseModel):
    """Whether the client's server was told that the job has ended."""

    host: str = Field(description="Host that is told.")
    state: WebhookState = Field(description="delivered: it answered 2xx; failed: no further attempt is made.")
    attempts: list[WebhookAttemptDocument] = Field(description="Attempts, the oldest first.")


class VideoDocument(BaseModel):
    """How far the work on a film is: its faces are found in all frames first, then fused in all frames; or its frames
    are measured, then painted.
    """

    stage: FilmStage = Field(
        description="waiting: for CPUs of the cluster; reading: the inputs; finding, fusing (faces) or measuring, "
        "painting (styles); joining; made."
    )
    frames_done: int = Field(description="Frames that are done in this stage.")
    frames_total: int | None = Field(description="Frames of the film; null: not known yet.")
    frames_per_second: float | None = Field(description="Speed of this stage, of late; null: not known yet.")
    seconds_left: float | None = Field(description="Time until this stage ends, at that speed; null: not known yet.")


class JobDocument(BaseModel):
    """State of a job."""

    job: str = Field(description="ID of the job.")
    status: JobState = Field(description="done, failed and cancelled are final.")
    total: int = Field(description="Pictures that were asked for; 1 for a film.")
    done: int = Field(description="Pictures that are made.")
    failed: int = Field(description="Pictures with a problem.")
    created_at: str = Field(description="ISO 8601, UTC.")
    ended_at: str | None = Field(description="ISO 8601, UTC; null while the job is open.")
    expires_at: str | None = Field(description="When the job is deleted, ISO 8601, UTC; null while the job is open.")
    reason: str | None = Field(description="Why the job failed.")
    webhook: WebhookDocument | None = Field(description="null: none was asked for.")
    video: VideoDocument | None = Field(description="How far a film is; null: the job makes pictures.")


class JobListDocument(BaseModel):
    """A page of the caller's jobs, the newest first."""

    jobs: list[JobDocument] = Field(description="The jobs.")
    next: str | None = Field(description="The `cursor` of the next page; null: this is the last one.")


class ItemDocument(BaseModel):
    """One picture of a job."""

    index: int = Field(description="Number of the target, from 1 on.")
    status: Literal["queued", "done", "failed", "cancelled"] = Field(
        description="cancelled: the job ended before the picture was made."
    )
    boxes: list[list[int]] | None = Field(
        default=None, description="Faces that were replaced: left, top, width, height."
    )
    model: str | None = Field(default=None, description="Title of the model that made it.")
    bundle: str | None = Field(default=None, description="Hash of the bundle that made it.")
    problem: dict[str, Any] | None = Field(default=None, description="Problem document of a picture that failed.")


class ItemListDocument(BaseModel):
    """A page of the pictures of a job, in their order."""

    items: list[ItemDocument] = Field(description="The pictures.")
    next: str | None = Field(description="The `cursor` of the next page; null: this is the last one.")


def describe_job(status: JobStatus) -> dict[str, Any]:
    """Build the JSON of a job's state."""
    return {
        "job": status.job,
        "status": status.state,
        "total": status.total,
        "done": status.done,
        "failed": status.failed,
        "created_at": write_time(status.created_at),
        "ended_at": None if status.ended_at is None else write_time(status.ended_at),
        "expires_at": None if status.ended_at is None else write_time(status.expires_at),
        "reason": status.reason,
        "webhook": None if status.webhook is None else describe_webhook(status.webhook),
        "video": None if status.video is None else describe_video(status.video),
    }


def describe_video(progress: FilmProgress) -> dict[str, Any]:
    """Build the JSON of the work on a film."""
    return {
        "stage": progress.stage,
        "frames_done": progress.done,
        "frames_total": progress.total,
        "frames_per_second": progress.frames_per_second,
        "seconds_left": progress.seconds_left,
    }


def describe_webhook(status: WebhookStatus) -> dict[str, Any]:
    """Build the JSON of a webhook."""
    attempts = [{"at": write_time(made.at), "status": made.status, "error": made.error} for made in status.attempts]
    return {"host": status.host, "state": status.state, "attempts": attempts}
