"""What serving is told and what it says: settings, model card, replies, and problems as RFC 9457 has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from fusionray.config import Section, merge_trees, parse_overrides, read_yaml, validate
from fusionray.errors import ConfigInvalid
from fusionray.runtime.settings import RuntimeSettings
from fusionray.safety.provenance import PictureFormat

Faces = Literal["largest", "all"]
PROBLEM_TYPE = "application/problem+json"
# WebP cannot store a longer side.
LONGEST_SIDE = 16_383
IMPORT_PATH = "serve.app:build"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000


class ServeConfig(Section):
    """Settings of the service. Ray Serve ignores keys it does not know; here they are refused."""

    bundle: str = Field(description="Folder of the bundle, or models:/name@alias in the registry.")
    tracking_uri: str | None = Field(default=None, description="MLflow server or store that holds the registry.")
    detector: str = Field(default="default", description="'default', or the path of a YuNet or SCRFD ONNX file.")
    runtime: RuntimeSettings = Field(default=RuntimeSettings(), description="On what the models run.")
    num_replicas: int = Field(default=1, ge=1, description="Copies of the model that are always there.")
    max_replicas: int | None = Field(default=None, ge=1, description="Scale up to this many under load.")
    cpus_per_replica: float = Field(default=1.0, ge=0, description="CPUs that Ray reserves for a copy.")
    gpus_per_replica: float = Field(default=0.0, ge=0, description="GPUs that Ray reserves for a copy.")
    max_ongoing_requests: int = Field(default=16, ge=1, description="Requests inside of a copy, most of them waiting.")
    max_queued_requests: int = Field(default=32, ge=1, description="Requests that wait outside; more get a 503.")
    request_timeout_seconds: float = Field(default=60.0, gt=0, description="A longer request is answered 504.")
    start_timeout_seconds: float = Field(default=300.0, gt=0, description="Give up if it is not ready by then.")
    max_body_bytes: int = Field(default=32 * 2**20, ge=1024, description="A longer request is answered 413.")
    max_pixels: int = Field(default=25_000_000, ge=1024, description="A larger picture is answered 413, undecoded.")
    default_format: PictureFormat = Field(default="png", description="Format of the answer if none is asked for.")
    jpeg_quality: int = Field(default=92, ge=1, le=100, description="Quality of JPEG and WebP answers.")

    @model_validator(mode="after")
    def check_replicas(self) -> ServeConfig:
        if self.max_replicas is not None and self.max_replicas < self.num_replicas:
            raise ValueError(f"max_replicas {self.max_replicas} is below num_replicas {self.num_replicas}")
        return self


@dataclass(frozen=True)
class Service:
    """What `fusionray serve` starts, and where it listens."""

    config: ServeConfig
    host: str
    port: int


def load_service(
    file: str | None, overrides: Sequence[str], host: str | None = None, port: int | None = None
) -> Service:
    """Read the settings of the service; `host` and `port` win over those of the file.

    The file is the one that `serve run` takes, or holds the settings of `ServeConfig` alone.

    Raises: ConfigInvalid naming the file and the key.
    """
    tree = read_yaml(Path(file)) if file is not None else {}
    http: dict[str, Any] = {}
    if "applications" in tree:
        http = tree.get("http_options") or {}
        ours = [
            app for app in tree["applications"] or [] if isinstance(app, dict) and app.get("import_path") == IMPORT_PATH
        ]
        if len(ours) != 1:
            raise ConfigInvalid(f"{file}: holds {len(ours)} applications with import_path {IMPORT_PATH}; one is served")
        tree = ours[0].get("args") or {}
    config = validate(ServeConfig, merge_trees(tree, parse_overrides(overrides)), file or "the command line")
    return Service(config, host or http.get("host", DEFAULT_HOST), port or http.get("port", DEFAULT_PORT))


@dataclass(frozen=True)
class ModelCard:
    """What `GET /v1/models` tells about the model in use."""

    name: str
    size: int
    template: str
    bundle: str
    licence: str
    provider: str
    providers: tuple[str, ...]
    threads: int
    runtime: str


@dataclass(frozen=True)
class FuseOptions:
    """What a client may choose for one request."""

    faces: Faces
    picture_format: PictureFormat


@dataclass(frozen=True)
class FuseReply:
    """A finished picture, encoded."""

    data: bytes
    media_type: str
    num_faces: int
    model: str
    bundle: str


@dataclass(frozen=True)
class Problem:
    """Why a request is not answered with a picture. `reason` is a short stable key, `picture` the one at fault."""

    status: int
    reason: str
    title: str
    detail: str
    picture: Literal["source", "target"] | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """Write the problem document.

        Source: RFC 9457, section 3.
        """
        document: dict[str, Any] = {
            "type": f"urn:fusionray:problem:{self.reason}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "reason": self.reason,
        }
        if self.picture is not None:
            document["picture"] = self.picture
        return json.dumps(document).encode()
