"""Which bundle answers for a model's name now: aliases that move, bundles that are replaced, canaries."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from fusionray.bundle.bundle import Bundle, bundle_hash, read_description
from fusionray.errors import BundleInvalid, FusionRayError
from fusionray.serving.config import REGISTRY_PREFIX, ModelConfig, ServeConfig
from fusionray.serving.schema import ModelVersion


class UnknownModel(FusionRayError):
    """A client asked for a model that is not served."""


@dataclass(frozen=True)
class ServedVersions:
    """The versions behind one name: the one that answers, and the one on trial."""

    main: ModelVersion
    canary: ModelVersion | None = None


class ModelRegistry:
    """Hold what the names of the settings mean; `look` asks again.

    Raises: BundleInvalid if a name means nothing at the start.
    """

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.pinned: dict[tuple[str, str], ModelVersion] = {}
        self.found = {model.name: self.find(model) for model in config.models}

    @property
    def default(self) -> str:
        """Name the model that answers if none is asked for."""
        return self.config.models[0].name

    def versions(self) -> list[ModelVersion]:
        """List all that may be asked to answer."""
        return [version for found in self.found.values() for version in (found.main, found.canary) if version]

    def choose(self, name: str | None) -> ModelVersion:
        """Choose who answers a request for a name; a canary takes its share at random.

        Raises: UnknownModel naming those there are.
        """
        found = self.found.get(name or self.default)
        if found is None:
            raise UnknownModel(f"no model '{name}' is served here; there are: {', '.join(self.found)}")
        on_trial = found.canary is not None and random.random() < found.canary.share  # noqa: S311 - no secret
        return found.canary if on_trial and found.canary is not None else found.main

    def look(self) -> dict[str, ServedVersions]:
        """Ask again what every name means; give those that mean something else now. `adopt` makes it so.

        Raises: BundleInvalid if a name means nothing any more; what was found before stays.
        """
        now = {model.name: self.find(model) for model in self.config.models}
        return {name: found for name, found in now.items() if found != self.found[name]}

    def adopt(self, changed: dict[str, ServedVersions]) -> None:
        """Let the new versions answer from now on."""
        self.found = self.found | changed

    def find(self, model: ModelConfig) -> ServedVersions:
        main = self.find_version(model, model.bundle, 1.0)
        if model.canary is None:
            return ServedVersions(main)
        return ServedVersions(main, self.find_version(model, model.canary.bundle, model.canary.share))

    def find_version(self, model: ModelConfig, location: str, share: float) -> ModelVersion:
        """Find the bundle that a location means; a version of the registry is fetched once."""
        if not location.startswith(REGISTRY_PREFIX):
            return ModelVersion(model.name, location, hash_of(Path(location)), share, model.precision)
        # Only a registry location needs the tracker.
        from fusionray.tracking import pin_bundle, resolve_bundle

        pinned = pin_bundle(location, self.config.tracking_uri)
        known = self.pinned.get((model.name, location))
        if known is not None and known.location == pinned:
            return known
        folder = resolve_bundle(pinned, self.config.tracking_uri)
        version = ModelVersion(model.name, pinned, hash_of(folder), share, model.precision)
        self.pinned[model.name, location] = version
        return version


def hash_of(folder: Path) -> str:
    """Hash the description of a bundle, which holds the hash of every file.

    Raises: BundleInvalid.
    """
    try:
        return bundle_hash(Bundle(folder, read_description(folder)))
    except OSError as error:
        raise BundleInvalid(f"{folder}: cannot be read ({error.strerror})") from None
