"""Resolve the name of a model to bundles: registry aliases that move, bundles that are replaced, canaries."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from fusionray.bundle.bundle import Bundle, bundle_hash, is_remote, read_description
from fusionray.bundle.description import FACE_FUSION
from fusionray.environment import REGISTRY_PREFIX
from fusionray.errors import BundleInvalid, FusionRayError
from fusionray.serving.config import ModelConfig, ServeConfig
from fusionray.serving.model_cards import ModelVersion


class UnknownModel(FusionRayError):
    """A client requests a model that is not served."""


class WrongTask(FusionRayError):
    """A client requests a model for a task that it does not do."""


@dataclass(frozen=True)
class ServedVersions:
    """The versions of one name: the main one, and the canary."""

    main: ModelVersion
    canary: ModelVersion | None = None


class ModelRegistry:
    """Hold the versions of the configured models; `look_up` resolves their names again.

    Raises: BundleInvalid if a name cannot be resolved at the start, or models of one task take different inputs.
    """

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.pinned: dict[tuple[str, str], ModelVersion] = {}
        self.served = {model.name: self.find(model) for model in config.models}
        self.tasks = self.list_tasks()

    @property
    def default(self) -> str:
        """Name the model that answers if the request names none."""
        return self.config.models[0].name

    def versions(self) -> list[ModelVersion]:
        """List all versions, canaries included."""
        return [version for served in self.served.values() for version in (served.main, served.canary) if version]

    def list_tasks(self) -> dict[str, tuple[str, ...]]:
        """List the served tasks, each with the inputs that it takes.

        Raises: BundleInvalid.
        """
        tasks: dict[str, tuple[str, ...]] = {}
        for name, served in self.served.items():
            task, inputs = served.main.task, served.main.inputs
            # Face fusion has its own names for the inputs, whatever those of the model are.
            if tasks.setdefault(task, inputs) != inputs and task != FACE_FUSION:
                raise BundleInvalid(
                    f"model {name}: takes {', '.join(inputs)}, and another model of the task {task} takes "
                    f"{', '.join(tasks[task])}; serve them apart"
                )
        return tasks

    def choose(self, name: str | None, task: str | None = None) -> ModelVersion:
        """Choose the version that answers a request for a name; a canary gets its share at random.

        Without a name, the first model of the task answers, or the first of all.

        Raises: UnknownModel listing the names that are served; WrongTask listing those of the task.
        """
        of_task = [known for known, served in self.served.items() if task in (None, served.main.task)]
        chosen = name or of_task[0]
        served = self.served.get(chosen)
        if served is None:
            raise UnknownModel(f"no model '{name}' is served here; there are: {', '.join(self.served)}")
        if chosen not in of_task:
            raise WrongTask(
                f"the model {chosen} is for {served.main.task}, not for {task}; ask for {', '.join(of_task)}"
            )
        use_canary = served.canary is not None and random.random() < served.canary.share  # noqa: S311 - no secret
        return served.canary if use_canary and served.canary is not None else served.main

    def look_up(self) -> dict[str, ServedVersions]:
        """Resolve every name again; return those that have changed. `adopt` makes them answer.

        Raises: BundleInvalid if a name cannot be resolved, or now names another task; the versions in use stay.
        """
        now = {model.name: self.find(model) for model in self.config.models}
        for name, versions in now.items():
            check_same_task(self.served[name].main, versions.main)
        return {name: versions for name, versions in now.items() if versions != self.served[name]}

    def adopt(self, changed: dict[str, ServedVersions]) -> None:
        """Let the new versions answer from now on."""
        self.served = self.served | changed

    def find(self, model: ModelConfig) -> ServedVersions:
        main = self.find_version(model, model.bundle, 1.0)
        if model.canary is None:
            return ServedVersions(main)
        canary = self.find_version(model, model.canary.bundle, model.canary.share)
        check_same_task(main, canary)
        return ServedVersions(main, canary)

    def find_version(self, model: ModelConfig, location: str, share: float) -> ModelVersion:
        """Find the bundle at a location; a version of the registry is fetched once."""
        if is_remote(location):
            from fusionray.bundle.remote import fetch_bundle

            return describe_version(model, location, fetch_bundle(location), share)
        if not location.startswith(REGISTRY_PREFIX):
            return describe_version(model, location, Path(location), share)
        # MLflow is imported only for a location in the registry.
        from fusionray.tracking.bundles import pin_bundle, resolve_bundle

        pinned = pin_bundle(location, self.config.tracking_uri)
        known = self.pinned.get((model.name, location))
        if known is not None and known.location == pinned:
            return known
        folder = resolve_bundle(pinned, self.config.tracking_uri)
        version = describe_version(model, pinned, folder, share)
        self.pinned[model.name, location] = version
        return version


def describe_version(model: ModelConfig, location: str, folder: Path, share: float) -> ModelVersion:
    """Identify the bundle in a folder by the hash of its description, which contains the hash of every file.

    Raises: BundleInvalid.
    """
    try:
        described = read_description(folder)
    except OSError as error:
        raise BundleInvalid(f"{folder}: cannot be read ({error.strerror})") from None
    digest = bundle_hash(Bundle(folder, described))
    return ModelVersion(model.name, location, digest, share, model.precision, described.task, described.inputs)


def check_same_task(known: ModelVersion, other: ModelVersion) -> None:
    """Refuse a version that would change the task or the inputs of a name: its routes exist from the start.

    Raises: BundleInvalid.
    """
    if known.task == other.task == FACE_FUSION:
        return
    if (known.task, known.inputs) != (other.task, other.inputs):
        raise BundleInvalid(
            f"{other.location}: does {other.task} with {', '.join(other.inputs)}, and the model {known.name} does "
            f"{known.task} with {', '.join(known.inputs)}; serve it under another name"
        )
