"""Types that the parts of the service exchange: tasks, replies, and the problems of RFC 9457."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fusionray.faces.blending.skin import Skin
from fusionray.faces.image_files.headers.image_header import PictureFormat
from fusionray.runtime.config import PixelBoost
from fusionray.runtime.face_preprocessor import FaceBox, FaceSelection
from fusionray.serving.model_cards import ModelVersion
from fusionray.serving.problem_document import problem_document

PROBLEM_TYPE = "application/problem+json"
# WebP cannot store a longer side.
LONGEST_SIDE = 16_383


@dataclass(frozen=True)
class PictureOptions:
    """Options of one request, the same for every task. Without `picture_format` the answer has that of the target."""

    picture_format: PictureFormat | None = None
    mark: bool = False
    consent: str | None = None


@dataclass(frozen=True)
class FuseOptions:
    """Options of one request. Without `picture_format` the answer has that of the target, and without `skin` that of
    the bundle. `strength` is the share of the fused face in the blend, 0 to 1; `pixel_boost` is how many times the
    model's size a face has at most.
    """

    faces: FaceSelection = "largest"
    picture_format: PictureFormat | None = None
    mark: bool = False
    consent: str | None = None
    strength: float = 1.0
    skin: Skin | None = None
    pixel_boost: PixelBoost = 1


@dataclass(frozen=True)
class ReferenceFace:
    """An encoded picture whose largest face says which face of a target is fused; the least similarity, -1 to 1."""

    picture: bytes
    similarity: float


@dataclass(frozen=True)
class FuseTask:
    """One picture to make: encoded pictures, the version that makes it, the client's options.

    `sources` are pictures, or handles of identities of `owner`: one, or one for each number in `options.faces`.
    `deadline` is a time of `time.time()`, so that it holds on other machines with synchronised clocks.
    """

    sources: tuple[bytes | str, ...]
    target: bytes
    version: ModelVersion
    options: FuseOptions
    deadline: float
    owner: str
    reference: ReferenceFace | None = None


@dataclass(frozen=True)
class KeepTask:
    """One source picture whose face is to be stored; `version` reads the face for the consent policy."""

    source: bytes
    version: ModelVersion
    consent: str | None
    owner: str


@dataclass(frozen=True)
class FindTask:
    """One picture whose faces are to be found, and compared with that of `reference`; `version` compares them."""

    picture: bytes
    version: ModelVersion
    reference: bytes | None = None


@dataclass(frozen=True)
class FoundFace:
    """A face of a picture: its box, its five points (x, y) as in `faces.face.Points`, the detector's score in 0..1.

    `similarity` is the cosine of its identity with that of the reference face, if there is one.
    """

    box: FaceBox
    landmarks: tuple[tuple[float, float], ...]
    score: float
    similarity: float | None = None


@dataclass(frozen=True)
class FacesReply:
    """The faces of a picture of `width` x `height` pixels, the largest first."""

    width: int
    height: int
    faces: tuple[FoundFace, ...]


@dataclass(frozen=True)
class IdentityReply:
    """A stored face: its handle, its expiry (seconds since 1970), and its box in its picture."""

    identity: str
    expires_at: float
    box: FaceBox


@dataclass(frozen=True)
class IdentityState:
    """A stored face that is asked for: its expiry (seconds since 1970), and the hash of its picture."""

    expires_at: float
    source_sha256: str


@dataclass(frozen=True)
class RemovedIdentity:
    """A stored face that was removed, by the hash of its picture."""

    source_sha256: str


@dataclass(frozen=True)
class PictureReply:
    """A finished picture, encoded and signed. `timing` holds milliseconds by stage, in the order of execution."""

    data: bytes
    media_type: str
    model: str
    bundle: str
    test_key: bool
    timing: dict[str, float]


@dataclass(frozen=True)
class FuseReply(PictureReply):
    """A fused picture; `boxes` are the faces that were replaced, `sources_sha256` the hashes of the source pictures."""

    boxes: tuple[FaceBox, ...]
    sources_sha256: tuple[str, ...]


@dataclass(frozen=True)
class Problem:
    """Why a request fails. `reason` is a short stable key; `picture` is the picture at fault, `rule` the rule of the
    target policy that refuses it.
    """

    status: int
    reason: str
    title: str
    detail: str
    picture: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    rule: str | None = None

    def document(self) -> dict[str, Any]:
        """Build the problem document."""
        document = problem_document(self.status, self.reason, self.title, self.detail)
        more = {"picture": self.picture, "rule": self.rule}
        return document | {name: value for name, value in more.items() if value is not None}

    def body(self) -> bytes:
        """Encode the problem document as JSON."""
        return json.dumps(self.document()).encode()


def unavailable(reason: str, detail: str) -> Problem:
    """Build the problem of a request that a client may repeat later."""
    return Problem(503, reason, "Not available now", f"{detail}; try again in a moment", headers={"Retry-After": "1"})


def write_time(seconds: float) -> str:
    """Format seconds since 1970 as ISO 8601, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
