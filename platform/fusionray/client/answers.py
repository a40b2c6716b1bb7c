"""What the service answers. The fields have the names that the OpenAPI document gives them.

A box is left, top, width, height in pixels of the upright picture, a point is x, y. Times have a time zone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from fusionray.errors import ServiceRefused

Box = tuple[int, int, int, int]
Point = tuple[float, float]


@dataclass(frozen=True)
class MadePicture:
    """A picture that was made, encoded and signed.

    `model` is the title of the model, `bundle` the hash of its bundle; `provenance` tells how the picture is signed
    (`c2pa; test-key` proves nothing); `timing` holds milliseconds by stage.
    """

    data: bytes = field(repr=False)
    media_type: str
    model: str
    bundle: str
    provenance: str
    timing: dict[str, float]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file. It keeps its format, whatever the name of the file says.

        Raises: OSError.
        """
        Path(path).write_bytes(self.data)


@dataclass(frozen=True)
class Fused(MadePicture):
    """A fused picture; `boxes` are the faces that were replaced."""

    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Face:
    """A face of a picture: 0 is the `index` of the largest, `score` is 0 to 1.

    `landmarks` are eyes, nose and corners of the mouth; `similarity`, -1 to 1, is there if a reference was sent.
    """

    index: int
    box: Box
    landmarks: tuple[Point, ...]
    score: float
    similarity: float | None = None


@dataclass(frozen=True)
class FoundFaces:
    """The faces of a picture of `width` x `height` pixels, the largest first."""

    width: int
    height: int
    faces: tuple[Face, ...]


@dataclass(frozen=True)
class KeptIdentity:
    """A stored face by its handle, which is a secret; use it as source. A new one tells its `box` in its picture.

    `KeptIdentity("id_...")` is enough for a handle that was written down.
    """

    identity: str = field(repr=False)
    expires_at: datetime | None = None
    box: Box | None = None


@dataclass(frozen=True)
class WebhookAttempt:
    """An attempt to tell the client's server: the status of its answer, or the kind of the error."""

    at: datetime
    status: int | None
    error: str | None


@dataclass(frozen=True)
class Webhook:
    """Whether the client's server was told that a job has ended: `pending`, `delivered` or `failed`."""

    host: str
    state: str
    attempts: tuple[WebhookAttempt, ...]


@dataclass(frozen=True)
class VideoProgress:
    """How far a film is: its faces are found in all frames first, then fused in all frames.

    `stage` is `waiting` (for CPUs), `reading`, `finding`, `fusing`, `joining` or `made`; the other fields are of this
    stage. None: not known yet.
    """

    stage: str
    frames_done: int
    frames_total: int | None
    frames_per_second: float | None
    seconds_left: float | None


@dataclass(frozen=True)
class Job:
    """A job by its ID: `status` is `queued`, `running`, `done`, `failed` or `cancelled`; the last three are final.

    Of `total` pictures `done` are made and `failed` are not; a film counts as one. `reason` tells why the job failed,
    `video` how far a film is. An open job does not expire: `expires_at` is None.
    """

    job: str
    status: str
    total: int
    done: int
    failed: int
    created_at: datetime
    ended_at: datetime | None
    expires_at: datetime | None
    reason: str | None
    webhook: Webhook | None
    video: VideoProgress | None = None

    @property
    def has_ended(self) -> bool:
        """Return whether the job is done, failed or cancelled."""
        return self.ended_at is not None


@dataclass(frozen=True)
class Item:
    """One picture of a job or batch: `index` counts from 1, `status` is `queued`, `done`, `failed` or `cancelled`."""

    index: int
    status: str
    boxes: tuple[Box, ...] | None = None
    model: str | None = None
    bundle: str | None = None
    problem: ServiceRefused | None = None


@dataclass(frozen=True)
class FusedItem(Item):
    """The same with the encoded picture, and its name in the archive (`0001.jpg`); None if it failed."""

    file: str | None = None
    data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Model:
    """A served model. `share` is the part of its requests that a canary answers.

    Only models of face fusion have a `template`; for others `task` names the route, and `inputs` its pictures.
    """

    name: str
    title: str
    size: int
    bundle: str
    licence: str
    provider: str
    providers: tuple[str, ...]
    threads: int
    runtime: str
    precision: str
    default: bool
    share: float
    canary: Model | None
    template: str | None = None
    task: str | None = None
    inputs: tuple[str, ...] | None = None


@dataclass(frozen=True)
class LimitUsage:
    """How far a limit is used up; it is full again after `reset_seconds`. `remaining` may be sent at once now."""

    limit: int
    used: int
    remaining: int
    reset_seconds: int


@dataclass(frozen=True)
class Usage:
    """What the caller's key allows, and what it used. A limit or time of None is none; `models` of None are all."""

    name: str
    admin: bool
    expires: datetime | None
    models: tuple[str, ...] | None
    requests_per_minute: LimitUsage | None
    images_per_day: LimitUsage | None


@dataclass(frozen=True)
class ApiKey:
    """A key of the service, without the key itself. A limit of None is none; `models` of None are all."""

    name: str
    expires: datetime | None
    requests_per_minute: int | None
    images_per_day: int | None
    models: tuple[str, ...] | None
    admin: bool


@dataclass(frozen=True)
class NewKey:
    """A key that was made, in plain text: the service does not store it."""

    name: str
    key: str = field(repr=False)
