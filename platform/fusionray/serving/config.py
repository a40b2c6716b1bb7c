"""Settings of the service. Ray Serve ignores keys that it does not know; here they are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from fusionray.bundle.description import Precision
from fusionray.config import Section, merge_trees, parse_overrides, read_yaml, validate
from fusionray.environment import resolve_location
from fusionray.errors import ConfigInvalid
from fusionray.runtime.config import RuntimeConfig
from fusionray.safety.audit import AuditConfig
from fusionray.safety.consent import ConsentConfig
from fusionray.safety.mark import MarkConfig
from fusionray.safety.provenance import PictureFormat
from fusionray.safety.signing_keys import SigningConfig
from fusionray.serving.auth.api_keys import ApiKeyConfig
from fusionray.serving.identities.store import IdentityConfig
from fusionray.serving.jobs.store import JobConfig

REGISTRY_PREFIX = "models:/"
# Sections of the settings, and which of their values are paths.
PATHS = (
    ("signing", "certificate", "key", "test_key_folder"),
    ("consent", "file"),
    ("audit", "path"),
    ("keys", "file", "spent"),
    ("identities", "folder"),
    ("jobs", "folder"),
    ("runtime", "cache"),
)
IMPORT_PATH = "serve.app:build"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class CanaryConfig(Section):
    """A second bundle that takes a share of a model's requests."""

    bundle: str = Field(description="Folder of the bundle, or models:/name@alias in the registry.")
    share: float = Field(gt=0, le=1, description="Share of the requests that it answers.")


class ModelConfig(Section):
    """A model that clients may ask for by its name."""

    name: str = Field(default="default", pattern=NAME_PATTERN, description="What clients ask for.")
    bundle: str = Field(description="Folder of the bundle, or models:/name@alias in the registry.")
    canary: CanaryConfig | None = Field(default=None, description="A second bundle on trial.")
    precision: Precision = Field(default="fp32", description="Which of the bundle's generators runs.")


class StageConfig(Section):
    """Where a part of the service runs, in how many copies, and with what."""

    num_replicas: int = Field(default=1, ge=1, description="Copies that are always there.")
    max_replicas: int | None = Field(default=None, ge=1, description="Scale up to this many under load.")
    target_ongoing_requests: float = Field(default=8.0, gt=0, description="Requests a copy, aimed at when scaling.")
    upscale_delay_seconds: float = Field(default=10.0, ge=0, description="Load must last so long before copies come.")
    downscale_delay_seconds: float = Field(default=300.0, ge=0, description="Idleness, before copies go.")
    cpus: float = Field(default=1.0, ge=0, description="CPUs that Ray reserves for a copy.")
    gpus: float = Field(default=0.0, ge=0, description="GPUs that Ray reserves for a copy; 0.25 puts four on one.")

    @model_validator(mode="after")
    def check_replicas(self) -> StageConfig:
        if self.max_replicas is not None and self.max_replicas < self.num_replicas:
            raise ValueError(f"max_replicas {self.max_replicas} is below num_replicas {self.num_replicas}")
        return self


class InlineStageConfig(StageConfig):
    """A part that may run inside of the one that calls it, which spares a hop and a copy of the pictures."""

    apart: bool = Field(default=False, description="Run in replicas of its own; else inside of the caller's.")
    max_ongoing_requests: int = Field(default=64, ge=1, description="Requests inside of a copy; others wait outside.")


class FaceStageConfig(InlineStageConfig):
    """Decoding, face analysis, putting back and encoding: they share the decoded picture, so they run together."""

    threads: int | None = Field(
        default=None, ge=1, description="Pictures worked on at once; the CPUs plus one if none."
    )


class GeneratorStageConfig(InlineStageConfig):
    """The generator, whose batches hold the faces of many requests."""

    max_batch: int | None = Field(
        default=None, ge=1, description="Faces computed at once; if none, 8, or 1 where the CPU computes."
    )
    lanes: int | None = Field(
        default=None, ge=1, description="Batches computed at the same time; if none, 1, or up to 4 that share the CPUs."
    )
    max_waiting_faces: int = Field(default=256, ge=1, description="Faces that may wait in a copy; more get a 503.")


class LimitConfig(Section):
    """What one request, and all of them together, may take."""

    max_requests: int = Field(
        default=64, ge=1, description="Requests inside of an ingress copy; more get a 503 at once."
    )
    max_body_bytes: int = Field(default=32 * 2**20, ge=1024, description="A longer request is answered 413.")
    max_pixels: int = Field(default=25_000_000, ge=1024, description="A larger picture is answered 413, undecoded.")
    max_batch_targets: int = Field(default=32, ge=1, description="Targets of one batch; jobs take more.")
    max_job_targets: int = Field(default=1000, ge=1, le=9999, description="Targets of one job.")
    max_faces: int = Field(default=64, ge=1, description="Faces of one picture that are fused; more are answered 413.")
    request_timeout_seconds: float = Field(default=60.0, gt=0, description="A longer request is answered 504.")
    body_timeout_seconds: float = Field(default=30.0, gt=0, description="A body that takes longer to come: 408.")


class ServeConfig(Section):
    """Settings of the service."""

    models: tuple[ModelConfig, ...] = Field(min_length=1, description="Models side by side; the first is the default.")
    models_per_replica: int = Field(default=4, ge=1, description="Models that a copy holds; the least used goes.")
    tracking_uri: str | None = Field(default=None, description="MLflow server or store that holds the registry.")
    alias_poll_seconds: float = Field(default=10.0, gt=0, description="How soon a moved registry alias is noticed.")
    detector: str = Field(default="default", description="'default', or the path of a YuNet or SCRFD ONNX file.")
    runtime: RuntimeConfig = Field(default=RuntimeConfig(), description="On what the models run.")
    ingress: StageConfig = Field(default=StageConfig(), description="The copies that take requests.")
    faces: FaceStageConfig = Field(default=FaceStageConfig(), description="The copies that work on pictures.")
    fuser: GeneratorStageConfig = Field(
        default=GeneratorStageConfig(), description="The copies that hold the generator."
    )
    limits: LimitConfig = Field(default=LimitConfig(), description="What requests may take.")
    signing: SigningConfig = Field(default=SigningConfig(), description="Whose key signs the outputs.")
    consent: ConsentConfig = Field(default=ConsentConfig(), description="What a request needs besides pictures.")
    audit: AuditConfig = Field(default=AuditConfig(), description="Where requests are written down.")
    keys: ApiKeyConfig = Field(default=ApiKeyConfig(), description="Who may ask, and how much.")
    identities: IdentityConfig = Field(default=IdentityConfig(), description="Where source faces are kept.")
    jobs: JobConfig = Field(default=JobConfig(), description="Where long work is kept.")
    mark: MarkConfig = Field(default=MarkConfig(), description="A visible mark on every output.")
    start_timeout_seconds: float = Field(default=300.0, gt=0, description="Give up if it is not ready by then.")
    default_format: PictureFormat = Field(default="png", description="Format of the answer if none is asked for.")
    jpeg_quality: int = Field(default=92, ge=1, le=100, description="Quality of JPEG and WebP answers.")

    @model_validator(mode="before")
    @classmethod
    def take_short_form(cls, tree: Any) -> Any:
        """Let `bundle: DIR` stand for one model."""
        if isinstance(tree, dict) and "bundle" in tree and "models" not in tree:
            tree = {**tree, "models": [{"bundle": tree["bundle"]}]}
            del tree["bundle"]
        return tree

    @field_validator("models")
    @classmethod
    def check_names(cls, models: tuple[ModelConfig, ...]) -> tuple[ModelConfig, ...]:
        names = [model.name for model in models]
        if len(set(names)) < len(names):
            raise ValueError(f"two models bear the same name ({', '.join(names)})")
        return models


def with_absolute_paths(config: ServeConfig) -> ServeConfig:
    """Make local paths absolute: replicas may have another working folder."""
    tree = config.model_dump()
    bundles = [(holder, "bundle") for model in tree["models"] for holder in (model, model["canary"])]
    others = [(tree[section], name) for section, *names in PATHS for name in names]
    if tree["detector"] != "default":
        others.append((tree, "detector"))
    for holder, name in (*bundles, *others):
        if holder is not None and holder[name] is not None and not holder[name].startswith(REGISTRY_PREFIX):
            holder[name] = resolve_location(holder[name])
    return ServeConfig.model_validate(tree)


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
    given = parse_overrides(overrides)
    if "bundle" in given:
        tree = {key: value for key, value in tree.items() if key not in ("models", "bundle")}
    config = validate(ServeConfig, merge_trees(tree, given), file or "the command line")
    return Service(config, host or http.get("host", DEFAULT_HOST), port or http.get("port", DEFAULT_PORT))
