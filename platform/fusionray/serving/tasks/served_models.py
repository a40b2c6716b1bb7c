"""The models of an ingress replica: each is loaded by its task, and followed when its alias moves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from fusionray.errors import FusionRayError
from fusionray.serving.model_cards import AnyModelCard, ModelVersion
from fusionray.serving.pipeline.model_registry import ModelRegistry
from fusionray.serving.schema import Problem, unavailable
from fusionray.serving.tasks.served_task import ServedTask

HEALTH_TIMEOUT_SECONDS = 2.0


class ServedModels:
    """Load the models of a registry by `tasks`, which are named as its models name them."""

    def __init__(self, registry: ModelRegistry, tasks: Mapping[str, ServedTask]) -> None:
        self.registry = registry
        self.tasks = tasks
        self.cards: dict[str, AnyModelCard] = {}

    async def load(self) -> None:
        """Load all models and warm them up.

        Raises: BundleInvalid, ProviderUnavailable.
        """
        for version in self.registry.versions():
            await self.prepare(version)

    async def prepare(self, version: ModelVersion) -> None:
        """Load a version, warm it up, and keep its card; raises as `load`."""
        card = await self.tasks[version.task].prepare(version)
        self.cards[version.id] = replace(card, default=version.name == self.registry.default, share=version.share)

    async def update(self) -> list[ModelVersion]:
        """Look for moved aliases and replaced bundles; return the new versions, which answer once all are warm.

        Raises: FusionRayError, OSError, RayActorError; the versions in use then stay.
        """
        changed = await asyncio.get_running_loop().run_in_executor(None, self.registry.look_up)
        for found in changed.values():
            for version in (found.main, found.canary):
                if version is not None:
                    await self.prepare(version)
        self.registry.adopt(changed)
        return [found.main for found in changed.values()]

    def list_cards(self) -> list[AnyModelCard]:
        """Describe the loaded models, the default first, each with its canary."""
        cards = []
        for found in self.registry.served.values():
            card = self.cards.get(found.main.id)
            if card is not None:
                canary = self.cards.get(found.canary.id) if found.canary is not None else None
                # A canary does the task of its model, so its card has the same type.
                cards.append(replace(card, canary=canary))  # type: ignore[arg-type]
        return cards

    async def check_default(self) -> Problem | None:
        """Check that the default model is loaded and answers; return a problem if not."""
        version = self.registry.choose(None)
        try:
            await asyncio.wait_for(self.tasks[version.task].prepare(version), HEALTH_TIMEOUT_SECONDS)
        except (TimeoutError, RayActorError, DeploymentUnavailableError, BackPressureError, FusionRayError):
            return unavailable("not_ready", "the model is not loaded yet, or does not answer")
        return None
