"""What `fusionray bench serve` measures, with how much load, and for how long."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from fusionray.config import Section
from fusionray.safety.provenance import PictureFormat

Part = Literal["throughput", "overhead", "door", "start", "overload", "soak"]
PARTS: tuple[Part, ...] = ("throughput", "overhead", "door", "start", "overload", "soak")


class ServeBenchConfig(Section):
    """Settings of the serving benchmark."""

    output: str = Field(
        description="folder for figures.json, report.html, report.md, the bundle, and logs of the servers"
    )
    bundle: str | None = Field(None, description="bundle that is served; default: the preset's shapes, random weights")
    preset: str = Field("fast-128", description="preset whose networks are served if no bundle is given")
    parts: tuple[Part, ...] = Field(PARTS, description="parts to measure")
    service: dict[str, Any] = Field({}, description="changes of the service, by its own names: service.fuser.lanes=2")
    rivals: str = Field(".venv-rivals", description="environment that holds the other servers: make bench-rivals")
    rival_workers: tuple[int, ...] = Field((1, 2), min_length=1, description="processes tried; the best counts")
    clients: int = Field(32, ge=1, description="clients that ask at the same time")
    rounds: int = Field(3, ge=1, description="rounds that contestants take turns in; medians are reported")
    turn_seconds: float = Field(10.0, gt=0, description="least length of a turn under load")
    warm_up_seconds: float = Field(6.0, ge=0, description="least load before each turn, not counted")
    picture_pixels: int = Field(512, ge=64, description="side of the pictures that clients send")
    picture_format: PictureFormat = Field("jpeg", description="format of the answers")
    requests: int = Field(60, ge=2, description="requests of the one client that tells the overhead")
    batches: tuple[int, ...] = Field((1, 2, 4, 8, 16), min_length=1, description="batches that the bare model tries")
    door_pixels: int = Field(64, ge=64, description="side of the pictures that the stub model is sent")
    saturation: tuple[int, ...] = Field((2, 4, 8, 16, 32), min_length=1, description="clients tried to saturate it")
    soak_clients: int = Field(8, ge=1, description="clients of the soak: as many as keep the machine busy")
    soak_minutes: float = Field(10.0, gt=0, description="length of the soak")
    kill_seconds: float = Field(60.0, gt=0, description="time between two replicas that are killed in the soak")
    seconds: float = Field(1800, gt=0, description="no part begins after this time")
