"""Resolve the name of a model to bundles: registry aliases that move, bundles that are replaced, canaries."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from fusionray.bundle.bundle import Bundle, bundle_hash, read_description
from fusionray.bundle.description import FACE_FUSION
from fusionray.errors import BundleInvalid, FusionRayError
from fusionray.serving.config import ModelConfig, ServeConfig
from fusionray.serving.schema import ModelVersion


class UnknownModel(FusionRayError):
    """A client requests a model that is not served."""


class WrongTask(FusionRayError):
    """A client asked a model for something that it does not do."""


@dataclass(frozen=True)
class ServedVersions:
    """The versions of one name: the main one, and the canary."""

    main: ModelVersion
    canary: ModelVersion | None = None


class ModelRegistry:
    """Hold the versions of the configured models; `look_up` resolves their names again.

    Raises: BundleInvalid if a name means nothing at the start, or models of one task take different inputs.
    """

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.pinned: dict[tuple[str, str], ModelVersion] = {}
        self.found = {model.name: self.find(model) for model in config.models}
        self.tasks = self.list_tasks()

    @property
    def default(self) -> str:
        """Name the model that answers if the request names none."""
        return self.config.models[0].name

    def versions(self) -> list[ModelVersion]:
        """List all versions, canaries included."""
        return [version for served in self.served.values() for version in (served.main, served.canary) if version]

    def list_tasks(self) -> dict[str, tuple[str, ...]]:
        """List the tasks that are served, and the inputs that each takes.

        Raises: BundleInvalid.
        """
        tasks: dict[str, tuple[str, ...]] = {}
        for name, found in self.found.items():
            task, inputs = found.main.task, found.main.inputs
            # Face fusion names its inputs itself, whatever the ports of a model are called.
            if tasks.setdefault(task, inputs) != inputs and task != FACE_FUSION:
                raise BundleInvalid(
                    f"model {name}: takes {', '.join(inputs)}, and another model of the task {task} takes "
                    f"{', '.join(tasks[task])}; serve them apart"
                )
        return tasks

    def choose(self, name: str | None, task: str | None = None) -> ModelVersion:
        """Choose who answers a request for a name; a canary takes its share at random.

        Without a name it is the first model of the task, or of all.

        Raises: UnknownModel naming those there are; WrongTask naming those of the task.
        """
        able = [known for known, found in self.found.items() if task in (None, found.main.task)]
        chosen = name or able[0]
        found = self.found.get(chosen)
        if found is None:
            raise UnknownModel(f"no model '{name}' is served here; there are: {', '.join(self.found)}")
        if chosen not in able:
            raise WrongTask(f"the model {chosen} is for {found.main.task}, not for {task}; ask for {', '.join(able)}")
        on_trial = found.canary is not None and random.random() < found.canary.share  # noqa: S311 - no secret
        return found.canary if on_trial and found.canary is not None else found.main

    def look_up(self) -> dict[str, ServedVersions]:
        """Resolve every name again; return those that have changed. `adopt` makes them answer.

        Raises: BundleInvalid if a name means nothing any more, or does another task; what was found before stays.
        """
        now = {model.name: self.find(model) for model in self.config.models}
        for name, found in now.items():
            check_same_task(self.found[name].main, found.main)
        return {name: found for name, found in now.items() if found != self.found[name]}

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
        if not location.startswith(REGISTRY_PREFIX):
            return describe_version(model, location, Path(location), share)
        # Only a registry location needs the tracker.
        from fusionray.tracking import pin_bundle, resolve_bundle

        pinned = pin_bundle(location, self.config.tracking_uri)
        known = self.pinned.get((model.name, location))
        if known is not None and known.location == pinned:
            return known
        folder = resolve_bundle(pinned, self.config.tracking_uri)
        version = describe_version(model, pinned, folder, share)
        self.pinned[model.name, location] = version
        return version


def describe_version(model: ModelConfig, location: str, folder: Path, share: float) -> ModelVersion:
    """Identify the bundle in a folder by the hash of its description, which holds the hash of every file.

    Raises: BundleInvalid.
    """
    try:
        described = read_description(folder)
    except OSError as error:
        raise BundleInvalid(f"{folder}: cannot be read ({error.strerror})") from None
    digest = bundle_hash(Bundle(folder, described))
    return ModelVersion(model.name, location, digest, share, model.precision, described.task, described.inputs)


def check_same_task(known: ModelVersion, other: ModelVersion) -> None:
    """Refuse a version that would change what a name can be asked for: its routes are there from the start.

    Raises: BundleInvalid.
    """
    if known.task == other.task == FACE_FUSION:
        return
    if (known.task, known.inputs) != (other.task, other.inputs):
        raise BundleInvalid(
            f"{other.location}: does {other.task} with {', '.join(other.inputs)}, and the model {known.name} does "
            f"{known.task} with {', '.join(known.inputs)}; serve it under another name"
        )
