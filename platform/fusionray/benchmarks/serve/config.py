"""Settings of `fusionray bench serve`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from fusionray.config import Section, in_unit
from fusionray.faces.image_files.headers.image_header import PictureFormat

BenchPart = Literal["throughput", "overhead", "proxy", "start", "scaling", "overload", "soak"]
PARTS: tuple[BenchPart, ...] = ("throughput", "overhead", "proxy", "start", "scaling", "overload", "soak")


class ServeBenchConfig(Section):
    """What `fusionray bench serve` measures, with how much load, and for how long."""

    listed_by: ClassVar[str] = "fusionray bench serve --settings"

    output: str = Field(
        description="Folder for figures.json, report.html, report.md, the bundle, and the logs of the servers."
    )
    bundle: str | None = Field(
        None, description="Bundle to serve; null: a bundle with the preset's shapes and random weights."
    )
    preset: str = Field("fast-128", description="Preset whose networks are served if no bundle is given.")
    parts: tuple[BenchPart, ...] = Field(PARTS, description="Parts of the benchmark to run.")
    service: dict[str, Any] = Field(
        {}, description="Changes of the service: service.KEY=VALUE, with the keys of `fusionray serve --settings`."
    )
    competitors: str = Field(
        ".venv-competitors",
        description="Environment of the other servers; `make bench-competitors` creates it.",
    )
    competitor_code: str | None = Field(
        None,
        description="Folder of the packages that the other servers run, platform/ of another checkout: what they reach "
        "with its face code. null: the same code as the service.",
    )
    competitor_workers: tuple[int, ...] = Field(
        (1, 2),
        min_length=1,
        description="Process counts that each other server is tried with; its best one counts.",
        json_schema_extra=in_unit("processes"),
    )
    clients: int = Field(32, ge=1, description="Clients that send requests at the same time.")
    rounds: int = Field(3, ge=1, description="Rounds; each loads every server once. Medians are reported.")
    load_seconds: float = Field(10.0, gt=0, description="Shortest duration of a load.")
    warm_up_seconds: float = Field(
        30.0,
        ge=0,
        description="Shortest warm-up before each load, which is not counted; more replicas start meanwhile.",
    )
    picture_pixels: int = Field(1350, ge=64, description="Side of the pictures that clients send.")
    picture_format: PictureFormat = Field("jpeg", description="Picture format of the answers.")
    requests: int = Field(60, ge=2, description="Requests of the single client that measures the overhead.")
    batches: tuple[int, ...] = Field(
        (1, 2, 4, 8, 16),
        min_length=1,
        description="Batch sizes that the bare model is tried with.",
        json_schema_extra=in_unit("images"),
    )
    proxy_pixels: int = Field(64, ge=64, description="Side of the pictures that the stub service receives.")
    saturation: tuple[int, ...] = Field(
        (2, 4, 8, 16, 32),
        min_length=1,
        description="Client counts that the stub service is tried with.",
        json_schema_extra=in_unit("clients"),
    )
    soak_clients: int = Field(8, ge=1, description="Clients of the soak test; choose as many as keep the machine busy.")
    soak_minutes: float = Field(10.0, gt=0, description="Duration of the soak test.")
    kill_seconds: float = Field(60.0, gt=0, description="Time between two replicas that the soak test kills.")
    seconds: float = Field(1800, gt=0, description="No part starts after this time.")
