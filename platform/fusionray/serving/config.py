"""Settings of the service. Unknown keys are errors here; Ray Serve itself ignores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from fusionray.bundle.description import WeightPrecision
from fusionray.config import Section, in_unit, merge_trees, parse_overrides, read_yaml, validate
from fusionray.environment import REGISTRY_PREFIX, resolve_location
from fusionray.errors import ConfigInvalid
from fusionray.faces.image_files.headers.image_header import KeptMetadata, PictureFormat
from fusionray.runtime.config import AUTO, RuntimeConfig
from fusionray.runtime.restorer import RestorerConfig
from fusionray.safety.audit import AuditConfig
from fusionray.safety.consent import ConsentConfig
from fusionray.safety.mark import MarkConfig
from fusionray.safety.signing_keys import SigningConfig
from fusionray.safety.target_policy import TargetPolicyConfig
from fusionray.serving.config_sections.access import AccessConfig
from fusionray.serving.config_sections.api_keys import ApiKeyConfig
from fusionray.serving.config_sections.identities import IdentityConfig
from fusionray.serving.config_sections.jobs import JobConfig
from fusionray.serving.config_sections.limits import LimitConfig
from fusionray.serving.config_sections.stages import FaceStageConfig, GeneratorStageConfig, StageConfig
from fusionray.serving.config_sections.videos import VideoConfig

# Settings whose values are paths, by section.
PATHS = (
    ("signing", "certificate", "key", "test_key_folder"),
    ("consent", "file"),
    ("target_policy", "model"),
    ("restorer", "model"),
    ("audit", "path"),
    ("keys", "file", "usage_file"),
    ("identities", "folder"),
    ("jobs", "folder", "key_file"),
    ("runtime", "cache"),
)
IMPORT_PATH = "serve.app:build"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class CanaryConfig(Section):
    """A second bundle that takes a share of a model's requests."""

    bundle: str = Field(description="Folder of the bundle, or models:/name@alias in the registry.")
    share: float = Field(gt=0, le=1, description="Share of the model's requests that the canary answers.")


class ModelConfig(Section):
    """A model, which clients request by its name."""

    name: str = Field(default="default", pattern=NAME_PATTERN, description="Name by which clients request the model.")
    bundle: str = Field(description="Folder of the bundle, or models:/name@alias in the registry.")
    canary: CanaryConfig | None = Field(
        default=None, description="A second bundle that answers a share of the requests; null: none."
    )
    precision: WeightPrecision = Field(default="fp32", description="Which of the bundle's generators runs.")


class ServeConfig(Section):
    """Settings of the service."""

    listed_by: ClassVar[str] = "fusionray serve --settings"

    models: tuple[ModelConfig, ...] = Field(
        min_length=1,
        description="Models that are served side by side; the first one is the default. `bundle=DIR` stands for one "
        "model.",
    )
    models_per_replica: int = Field(
        default=4,
        ge=1,
        description="Models that a replica holds; the least recently used one is unloaded first. If it can hold all, "
        "it loads all before it takes requests, and any replica answers.",
        json_schema_extra=in_unit("models"),
    )
    tracking_uri: str | None = Field(default=None, description="MLflow server or store that holds the model registry.")
    alias_poll_seconds: float = Field(
        default=10.0, gt=0, description="Time between two checks for a moved registry alias."
    )
    detector: str = Field(
        default="default", description="Face detector: 'default', or the path of a YuNet or SCRFD ONNX file."
    )
    smallest_face: float | None = Field(
        default=None,
        ge=16,
        description="Width of the smallest face for which the default detector searches a picture in parts; null: 46, "
        "or in a large picture the 44th part of its longer side. Half of it takes four times as long.",
        json_schema_extra=in_unit("px"),
    )
    runtime: RuntimeConfig = Field(default=RuntimeConfig(), description="On which hardware the models run.")
    ingress: StageConfig = Field(default=StageConfig(), description="Replicas that take HTTP requests.")
    faces: FaceStageConfig = Field(
        default=FaceStageConfig(), description="Decoding, face detection, pasting and encoding of pictures."
    )
    fuser: GeneratorStageConfig = Field(
        default=GeneratorStageConfig(), description="The generator, which batches the faces of many requests."
    )
    limits: LimitConfig = Field(
        default=LimitConfig(), description="Limits of one request, and of all requests together."
    )
    signing: SigningConfig = Field(default=SigningConfig(), description="Key that signs the outputs.")
    consent: ConsentConfig = Field(default=ConsentConfig(), description="What a request needs besides its pictures.")
    target_policy: TargetPolicyConfig = Field(
        default=TargetPolicyConfig(), description="Which targets are refused: what a classifier of the operator says."
    )
    restorer: RestorerConfig = Field(
        default=RestorerConfig(), description="What sharpens fused faces: a model of the operator."
    )
    audit: AuditConfig = Field(default=AuditConfig(), description="Where requests are recorded.")
    keys: ApiKeyConfig = Field(default=ApiKeyConfig(), description="Who may send requests, and how many.")
    access: AccessConfig = Field(
        default=AccessConfig(), description="From which web pages, and under which names, the service is reached."
    )
    listen_on_every_node: bool = Field(
        default=True,
        description="Take requests on every node that the cluster has at the start, by an empty process on each; "
        "false: on those with replicas only, so that an autoscaler of nodes can remove the others.",
    )
    identities: IdentityConfig = Field(default=IdentityConfig(), description="Where source faces are kept.")
    jobs: JobConfig = Field(default=JobConfig(), description="Where jobs are kept.")
    videos: VideoConfig = Field(default=VideoConfig(), description="How the films of jobs are made.")
    mark: MarkConfig = Field(default=MarkConfig(), description="A visible mark on every output.")
    start_timeout_seconds: float = Field(
        default=300.0, gt=0, description="Stop with an error if the service is not ready after this time."
    )
    default_format: PictureFormat | None = Field(
        default=None,
        description="Picture format of an answer if the request names none; null: that of the target, JPEG for "
        "AVIF and HEIC, PNG for BMP, TIFF and Netpbm.",
    )
    metadata: KeptMetadata = Field(
        default="colours",
        description="What an answer keeps of its target's metadata: colours (the ICC profile), all (EXIF data as well, "
        "which may tell camera, time and place; never the thumbnail), or none.",
    )
    jpeg_quality: int = Field(default=92, ge=1, le=100, description="Quality of JPEG and WebP answers.")

    @model_validator(mode="before")
    @classmethod
    def take_short_form(cls, tree: Any) -> Any:
        """Let `bundle: DIR` stand for one model."""
        if isinstance(tree, dict) and "bundle" in tree and "models" not in tree:
            tree = {**tree, "models": [{"bundle": tree["bundle"]}]}
            del tree["bundle"]
        return tree

    @property
    def replicas_hold_all_models(self) -> bool:
        """Whether a replica can hold all models at once, canaries included."""
        return sum(1 if model.canary is None else 2 for model in self.models) <= self.models_per_replica

    @field_validator("models")
    @classmethod
    def check_names(cls, models: tuple[ModelConfig, ...]) -> tuple[ModelConfig, ...]:
        names = [model.name for model in models]
        if len(set(names)) < len(names):
            raise ValueError(f"two models have the same name ({', '.join(names)})")
        return models


def with_absolute_paths(config: ServeConfig) -> ServeConfig:
    """Make local paths absolute, because replicas may run in another working folder."""
    tree = config.model_dump()
    bundles = [(holder, "bundle") for model in tree["models"] for holder in (model, model["canary"])]
    others = [(tree[section], name) for section, *names in PATHS for name in names]
    if tree["detector"] != "default":
        others.append((tree, "detector"))
    for holder, name in (*bundles, *others):
        if holder is not None and holder[name] not in (None, AUTO) and not holder[name].startswith(REGISTRY_PREFIX):
            holder[name] = resolve_location(holder[name])
    return ServeConfig.model_validate(tree)


@dataclass(frozen=True)
class Service:
    """The settings of `fusionray serve`, and the address that it listens on."""

    config: ServeConfig
    host: str
    port: int


def load_service(
    file: str | None, overrides: Sequence[str], host: str | None = None, port: int | None = None
) -> Service:
    """Read the settings of the service; `host` and `port` override those of the file.

    The file is a Ray Serve configuration file, or holds the settings of `ServeConfig` alone.

    Raises: ConfigInvalid naming the file and the key.
    """
    tree, http = read_service_tree(file, parse_overrides(overrides))
    config = validate(ServeConfig, tree, file or "the command line")
    return Service(config, host or http.get("host", DEFAULT_HOST), port or http.get("port", DEFAULT_PORT))


def read_service_tree(file: str | None, overrides: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the unchecked settings of the service, and the HTTP options of a file that `serve run` takes.

    Raises: ConfigInvalid for a file that cannot be read, or that does not hold one application of ours.
    """
    tree = read_yaml(Path(file)) if file is not None else {}
    http: dict[str, Any] = {}
    if "applications" in tree:
        http = tree.get("http_options") or {}
        ours = [
            app for app in tree["applications"] or [] if isinstance(app, dict) and app.get("import_path") == IMPORT_PATH
        ]
        if len(ours) != 1:
            raise ConfigInvalid(
                f"{file}: contains {len(ours)} applications with import_path {IMPORT_PATH}; leave exactly one"
            )
        tree = ours[0].get("args") or {}
    if "bundle" in overrides:
        tree = {key: value for key, value in tree.items() if key not in ("models", "bundle")}
    return merge_trees(tree, overrides), http
